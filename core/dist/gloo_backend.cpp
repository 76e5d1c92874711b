// The PyTorch wheel exports ProcessGroupGloo but does not contain gloo's headers; those of Debian's
// package suffice for the calls below. Only this file includes them: libgloo is not linked and no
// gloo type is constructed here.
#define USE_C10D_GLOO
#include <cstdlib>

#include <ATen/ops/amax.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "core/base/error.h"
#include "core/dist/backend.h"

namespace shardlens::dist {
namespace {

// Gloo with the reduce-scatter and the all-gather of sharding implemented as one all-to-all. Gloo's
// own reduce-scatter is an all-reduce of the whole buffer, and its all-gather needs W - 1 rounds.
// For small units, where latency dominates, an all-to-all is faster (two ranks, 180 KB: 240 us
// instead of 410 to 770 us for the reduce-scatter and 300 to 500 us for the all-gather). Only the
// owner of a chunk sums it, in order of rank, so results are reproducible.
//
// Threads  the calls block until the exchange is done; a Communicator makes them.
class PairwiseGloo final : public c10d::ProcessGroupGloo {
 public:
  using c10d::ProcessGroupGloo::ProcessGroupGloo;

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    const bool average = options.reduceOp == c10d::ReduceOp::AVG;
    if (!average && options.reduceOp != c10d::ReduceOp::SUM) {
      return c10d::ProcessGroupGloo::_reduce_scatter_base(output, input, options);
    }
    at::Tensor received = at::empty_like(input);
    auto work = exchange(received, input);
    at::sum_out(output, received.view({getSize(), -1}), 0);
    if (average) {
      output.div_(getSize());
    }
    return work;
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output,
                                                 at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    if (output.nbytes() > kDirectGather) {
      return c10d::ProcessGroupGloo::_allgather_base(output, input, options);
    }
    const at::Tensor copies = input.view({1, -1}).expand({getSize(), -1}).contiguous();
    return exchange(output, copies);
  }

 private:
  // For larger outputs bandwidth dominates, and a copy for each peer would only cost memory.
  static constexpr size_t kDirectGather = size_t{1} << 20;

  // Sends chunk p of `input` to rank p. Sends bytes, so that it works for every dtype.
  c10::intrusive_ptr<c10d::Work> exchange(const at::Tensor& output, const at::Tensor& input) {
    at::Tensor to = output.view({-1}).view(at::kByte);
    at::Tensor from = input.view({-1}).view(at::kByte);
    std::vector<int64_t> equal_splits;
    auto work = alltoall_base(to, from, equal_splits, equal_splits);
    work->wait();
    return work;
  }
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank,
                                                    int size,
                                                    std::chrono::milliseconds timeout,
                                                    const std::string& hostname) {
  using Gloo = c10d::ProcessGroupGloo;
  // [Note: Flight recorder] c10d has one flight recorder per process, which crashes if two groups
  // enqueue at the same time from different threads (seen with torch 2.11: a map insertion without
  // lock). It is switched off; our Recorder stores the same data.
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
  try {
    auto options = Gloo::Options::create_default(timeout);
    if (!hostname.empty()) {
      options->devices = {Gloo::createDeviceForHostname(hostname)};
    }
    options->threads = 1;  // with two threads the order would not be FIFO
    return c10::make_intrusive<PairwiseGloo>(store, rank, size, options);
  } catch (const std::exception& error) {
    const std::string reason = error.what();  // may have the stack in the lines after the first
    throw RuntimeFault("[rank " + std::to_string(rank) + "] gloo: the " + std::to_string(size) +
                       " ranks did not connect: " + reason.substr(0, reason.find('\n')));
  }
}

}  // namespace shardlens::dist
