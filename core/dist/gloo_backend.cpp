// The wheel exports ProcessGroupGloo but ships no gloo headers; Debian's serve for the calls below.
// Headers only, in this one file: libgloo is never linked and no gloo type is constructed here.
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

// Gloo with the two collectives of sharding as one direct exchange. Its own reduce-scatter is an
// all-reduce of the whole buffer, and its all-gather passes through W - 1 rounds; on small units,
// where latency is all, an all-to-all takes a third to a half of the time (two ranks, 180 KB: 240
// us instead of 410 to 770, and 300 to 500). A chunk is summed by its owner alone, in order of
// rank, so results stay reproducible.
//
// Threads  the calls block until the exchange is done: they run on the communication thread.
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
  // Beyond this bandwidth counts, and a copy for each peer would be memory for nothing.
  static constexpr size_t kDirectGather = size_t{1} << 20;

  // Chunk p of `input` goes to rank p. As bytes, so that it works for every dtype.
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
  // [Note: Flight recorder] c10d's flight recorder is one per process and crashes when two groups
  // enqueue at once from threads of their own (seen with torch 2.11: a map insertion without lock).
  // Our recorder keeps the same facts.
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
  try {
    auto options = Gloo::Options::create_default(timeout);
    if (!hostname.empty()) {
      options->devices = {Gloo::createDeviceForHostname(hostname)};
    }
    options->threads = 1;  // two are not FIFO
    return c10::make_intrusive<PairwiseGloo>(store, rank, size, options);
  } catch (const std::exception& error) {
    throw RuntimeFault("[rank " + std::to_string(rank) + "] gloo: the " + std::to_string(size) +
                       " ranks did not connect: " + error.what());
  }
}

}  // namespace shardlens::dist
