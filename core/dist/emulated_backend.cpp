#include <chrono>
#include <memory>
#include <thread>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "core/dist/backend.h"

namespace shardlens::dist {
namespace {

// The communication thread runs one request at a time, so a collective is done when the call
// returns.
class FinishedWork : public c10d::Work {
 public:
  FinishedWork() { finish(); }
};

class EmulatedBackend : public c10d::Backend {
 public:
  EmulatedBackend(int rank, int size, std::shared_ptr<const CollectiveTimer> timer)
      : Backend(rank, size), timer_(std::move(timer)) {}

  const std::string getBackendName() const override { return "emulated"; }

  c10::intrusive_ptr<c10d::Work> _allgather_base(
      at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& /*options*/) override {
    return timed(CollectiveKind::kAllGather, output.nbytes(), [&] {
      const int64_t n = input.numel();
      for (int r = 0; r < size_; ++r) {
        at::Tensor slice = output.narrow(0, r * n, n);
        if (slice.data_ptr() != input.data_ptr()) {
          slice.copy_(input);
        }
      }
    });
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::ReduceScatterOptions& /*options*/) override {
    return timed(CollectiveKind::kReduceScatter, input.nbytes(),
                 [&] { output.copy_(input.narrow(0, rank_ * output.numel(), output.numel())); });
  }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& /*options*/) override {
    return timed(CollectiveKind::kAllReduce, tensors.at(0).nbytes(), [] {});
  }

  // Behaves as if every rank had the same values as this one.
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& /*options*/) override {
    return timed(CollectiveKind::kBroadcast, tensors.at(0).nbytes(), [] {});
  }

  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& /*options*/) override {
    return timed(CollectiveKind::kBarrier, 0, [] {});
  }

 private:
  template <typename Move>
  c10::intrusive_ptr<c10d::Work> timed(CollectiveKind kind, size_t larger_message, Move move) {
    const auto start = std::chrono::steady_clock::now();
    move();
    if (timer_ != nullptr) {
      const Nanoseconds duration =
          timer_->duration(kind, size_, static_cast<Bytes>(larger_message));
      if (duration > 0) {
        last_until(start + std::chrono::nanoseconds(duration));
      }
    }
    return c10::make_intrusive<FinishedWork>();
  }

  // See [Note: A host that stays awake] in communicator.cpp. The communication thread may sleep.
  void last_until(std::chrono::steady_clock::time_point end) const {
    if (std::this_thread::get_id() != host_) {
      return std::this_thread::sleep_until(end);
    }
    while (std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
    }
  }

  std::shared_ptr<const CollectiveTimer> timer_;
  std::thread::id host_ = std::this_thread::get_id();  // the thread that joined the world
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_emulated_backend(
    int rank, int size, std::shared_ptr<const CollectiveTimer> timer) {
  return c10::make_intrusive<EmulatedBackend>(rank, size, std::move(timer));
}

}  // namespace shardlens::dist
