#include "core/dist/delay_backend.h"

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "core/base/error.h"
#include "core/dist/delay_kernel.h"

namespace shardlens::dist {
namespace {

// Already done for the host; the stream orders the work on the device.
class IssuedWork : public c10d::Work {
 public:
  IssuedWork() { finish(); }
};

class DelayBackend final : public c10d::Backend {
 public:
  DelayBackend(int rank, int size, std::shared_ptr<const CollectiveTimer> timer, c10::Device device)
      : Backend(rank, size), timer_(std::move(timer)), device_(device) {}

  const std::string getBackendName() const override { return "emulated"; }

  c10::intrusive_ptr<c10d::Work> _allgather_base(
      at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& /*options*/) override {
    return launch(CollectiveKind::kAllGather, input, output, input.nbytes(), output.nbytes());
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::ReduceScatterOptions& /*options*/) override {
    return launch(CollectiveKind::kReduceScatter, input, output, output.nbytes(), input.nbytes());
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& /*options*/) override {
    return in_place(CollectiveKind::kAllReduce, tensors.at(0));
  }
  // Behaves as if every rank had the same values as this one.
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& /*options*/) override {
    return in_place(CollectiveKind::kBroadcast, tensors.at(0));
  }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& /*options*/) override {
    return c10::make_intrusive<IssuedWork>();
  }

 private:
  c10::intrusive_ptr<c10d::Work> in_place(CollectiveKind kind, const at::Tensor& tensor) {
    return launch(kind, tensor, tensor, tensor.nbytes(), tensor.nbytes());
  }

  c10::intrusive_ptr<c10d::Work> launch(CollectiveKind kind,
                                        const at::Tensor& in,
                                        const at::Tensor& out,
                                        size_t slice,
                                        size_t larger_message) {
    SHARDLENS_CHECK(in.device() == device_ && out.device() == device_,
                    "a collective on tensors of another device");
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device_.index());
    DelayLaunch launch;
    launch.kind = kind;
    launch.in = in.const_data_ptr();
    launch.out = out.mutable_data_ptr();
    launch.bytes = static_cast<Bytes>(slice);
    launch.rank = rank_;
    launch.ranks = size_;
    launch.stream = stream.stream();
    if (last_.isCreated()) {
      last_.block(stream);
    }
    if (timer_ != nullptr) {
      launch.ctas = timer_->ctas();
      launch.duration = timer_->duration(kind, size_, static_cast<Bytes>(larger_message));
    }
    launch_delay(launch);
    last_.record(stream);
    return c10::make_intrusive<IssuedWork>();
  }

  std::shared_ptr<const CollectiveTimer> timer_;
  c10::Device device_;
  // Recorded after the last collective: like an NCCL communicator, this backend runs its
  // collectives one after the other even if they are on different streams.
  at::cuda::CUDAEvent last_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_delay_backend(int rank,
                                                     int size,
                                                     std::shared_ptr<const CollectiveTimer> timer,
                                                     c10::Device device) {
  return c10::make_intrusive<DelayBackend>(rank, size, std::move(timer), device);
}

}  // namespace shardlens::dist
