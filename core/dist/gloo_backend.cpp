// The PyTorch wheel exports ProcessGroupGloo but does not contain gloo's headers; those of Debian's
// package suffice for the calls below. Only this file includes them: libgloo is not linked and no
// gloo type is constructed here.
#define USE_C10D_GLOO
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "core/base/error.h"
#include "core/dist/backend.h"
#include "core/dist/peer_memory.h"

namespace shardlens::dist {
namespace {

// In a smaller all-reduce every rank reads all values of the others, and meets them once.
constexpr size_t kSwapped = size_t{1} << 17;  // bytes that a rank reads
// For larger outputs bandwidth dominates, and a copy for each peer would only cost memory.
constexpr size_t kDirectGather = size_t{1} << 20;
constexpr int64_t kBlock = int64_t{1} << 17;  // bytes that fit the cache of a core

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

// Gloo with the reduce-scatter and the all-gather of sharding implemented as one exchange of chunks
// between each pair of ranks. Gloo's own reduce-scatter is an all-reduce of the whole buffer, and
// its all-gather needs W - 1 rounds. Only the owner of a chunk sums it, in order of rank, so
// results are reproducible.
//
// Ranks of one machine read the chunks from each other's memory (PeerMemory). Others exchange them
// by an all-to-all: for small units, where latency dominates, it is faster than Gloo's own (two
// ranks, 180 KB: 240 us instead of 410 to 770 us for the reduce-scatter and 300 to 500 us for the
// all-gather).
//
// Threads  the calls block until the exchange is done; a Communicator makes them.
class PairwiseGloo final : public c10d::ProcessGroupGloo, public PartsGather {
 public:
  PairwiseGloo(const c10::intrusive_ptr<c10d::Store>& store,
               int rank,
               int size,
               c10::intrusive_ptr<Options> options,
               bool reads_peers)
      : ProcessGroupGloo(store, rank, size, options) {
    if (reads_peers) {
      memory_ =
          PeerMemory::join(rank, size, options->timeout, [this](auto own) { return of_all(own); });
    }
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    const bool average = options.reduceOp == c10d::ReduceOp::AVG;
    if (!average && options.reduceOp != c10d::ReduceOp::SUM) {
      return c10d::ProcessGroupGloo::_reduce_scatter_base(output, input, options);
    }
    if (memory_ != nullptr) {
      reduce({input.view({-1}), output.numel()}, output.view({-1}), average);
      return nullptr;
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
    if (memory_ != nullptr) {
      gather({output.view({-1}), input.numel()}, input.view({-1}));
      return nullptr;
    }
    if (output.nbytes() > kDirectGather) {
      return c10d::ProcessGroupGloo::_allgather_base(output, input, options);
    }
    const at::Tensor copies = input.view({1, -1}).expand({getSize(), -1}).contiguous();
    return exchange(output, copies);
  }

  [[nodiscard]] bool gathers_parts() const override { return memory_ != nullptr; }

  void gather_parts(const at::Tensor& output,
                    const at::Tensor& input,
                    std::span<const int64_t> parts) override {
    const size_t item = input.element_size();
    // Calls each(offset of a part in a rank's input, its place in the output), in bytes.
    const auto for_places = [&](int rank, auto each) {
      size_t before = 0;
      for (const int64_t part : parts) {
        const size_t width = static_cast<size_t>(part) * item;
        if (width > 0) {
          each(before, bytes_of(output).subspan(before * static_cast<size_t>(getSize()) +
                                                    static_cast<size_t>(rank) * width,
                                                width));
        }
        before += width;
      }
    };
    memory_->lend(bytes_of(input), input.nbytes(), [&] {
      for_places(getRank(), [&](size_t at, std::span<std::byte> place) {
        std::memcpy(place.data(), bytes_of(input).data() + at, place.size());
      });
      for_peers([&](int peer) {
        for_places(peer,
                   [&](size_t at, std::span<std::byte> place) { memory_->read(peer, at, place); });
      });
    });
  }

  // Summed in order of rank. Between two ranks this is the sum of Gloo's ring, too.
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    const bool average = options.reduceOp == c10d::ReduceOp::AVG;
    const at::Tensor& given = tensors.at(0);
    if (memory_ == nullptr || !given.is_floating_point() || !given.is_contiguous() ||
        (!average && options.reduceOp != c10d::ReduceOp::SUM)) {
      return c10d::ProcessGroupGloo::allreduce(tensors, options);
    }
    const at::NoGradGuard no_grad;
    const at::Tensor whole = given.variable_data().view({-1});  // autograd does not see the writes
    if (whole.nbytes() * static_cast<size_t>(getSize() - 1) <= kSwapped) {
      const at::Tensor rows = rows_of(whole);
      memory_->lend(bytes_of(whole), whole.nbytes(), [&] {
        for_peers([&](int peer) { memory_->read(peer, 0, bytes_of(row(rows, peer))); });
      });
      add_up(whole, whole, rows, average);
    } else {
      const Chunks chunks{whole, (whole.numel() + getSize() - 1) / getSize()};
      const at::Tensor own = chunks.of(getRank());
      reduce(chunks, own, average);
      gather(chunks, own);
    }
    return nullptr;
  }

 private:
  // One of the tensor's parts for each rank; the last one may be shorter.
  struct Chunks {
    at::Tensor whole;
    int64_t numel = 0;

    [[nodiscard]] at::Tensor of(int rank) const {
      const int64_t begin = std::min(rank * numel, whole.numel());
      return whole.narrow(0, begin, std::min(numel, whole.numel() - begin));
    }
  };

  // The others, the next one first, so that they do not all begin with the same.
  template <typename Each>
  void for_peers(Each each) const {
    for (int i = 1; i < getSize(); ++i) {
      each((getRank() + i) % getSize());
    }
  }

  // Sends chunk p of `input` to rank p. Sends bytes, so that it works for every dtype.
  c10::intrusive_ptr<c10d::Work> exchange(const at::Tensor& output, const at::Tensor& input) {
    at::Tensor to = output.view({-1}).view(at::kByte);
    at::Tensor from = input.view({-1}).view(at::kByte);
    std::vector<int64_t> equal_splits;
    auto work = alltoall_base(to, from, equal_splits, equal_splits);
    work->wait();
    return work;
  }

  // `into` becomes the sum of all ranks' chunks that this rank owns; it may be its own one.
  void reduce(const Chunks& chunks, const at::Tensor& into, bool average) {
    const at::NoGradGuard no_grad;
    const at::Tensor own = chunks.of(getRank());
    const auto item = static_cast<int64_t>(own.element_size());
    const int64_t block = std::min(kBlock / item, own.numel());
    const at::Tensor rows = rows_of(own.narrow(0, 0, block));
    memory_->lend(bytes_of(chunks.whole), chunks.whole.nbytes(), [&] {
      const int64_t first = getRank() * chunks.numel;
      for (int64_t at = 0; at < own.numel(); at += block) {
        const int64_t numel = std::min(block, own.numel() - at);
        for_peers([&](int peer) {
          memory_->read(peer, static_cast<uint64_t>((first + at) * item),
                        bytes_of(row(rows, peer).narrow(0, 0, numel)));
        });
        add_up(into.narrow(0, at, numel), own.narrow(0, at, numel), rows.narrow(1, 0, numel),
               average);
      }
    });
  }

  // For values like these of each rank; of two ranks, only for the other one's.
  at::Tensor rows_of(const at::Tensor& values) const {
    return at::empty({getSize() == 2 ? 1 : getSize(), values.numel()}, values.options());
  }

  at::Tensor row(const at::Tensor& rows, int peer) const { return rows[getSize() == 2 ? 0 : peer]; }

  // `rows`: see rows_of().
  void add_up(at::Tensor into, const at::Tensor& own, const at::Tensor& rows, bool average) const {
    if (getSize() == 2) {
      at::add_out(into, own, rows[0]);
    } else {
      rows[getRank()].copy_(own);
      at::sum_out(into, rows, 0);
    }
    if (average) {
      into.div_(getSize());
    }
  }

  // Each rank's `own` becomes its chunk of everyone's whole; it may be there already.
  void gather(const Chunks& chunks, const at::Tensor& own) {
    const size_t most = static_cast<size_t>(chunks.numel) * own.element_size();
    memory_->lend(bytes_of(own), most, [&] {
      const at::Tensor place = chunks.of(getRank());
      if (own.numel() > 0 && place.const_data_ptr() != own.const_data_ptr()) {
        std::memcpy(place.data_ptr(), own.const_data_ptr(), own.nbytes());
      }
      for_peers([&](int peer) { memory_->read(peer, 0, bytes_of(chunks.of(peer))); });
    });
  }

  // What each rank has passed, by rank.
  std::vector<std::byte> of_all(std::span<const std::byte> own) {
    at::Tensor in = at::empty({static_cast<int64_t>(own.size())}, at::kByte);
    at::Tensor out = at::empty({in.numel() * getSize()}, at::kByte);
    std::memcpy(in.data_ptr(), own.data(), own.size());
    c10d::ProcessGroupGloo::_allgather_base(out, in, {})->wait();
    const std::span<std::byte> all = bytes_of(out);
    return {all.begin(), all.end()};
  }

  std::unique_ptr<PeerMemory> memory_;  // null: messages
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank,
                                                    int size,
                                                    std::chrono::milliseconds timeout,
                                                    const std::string& hostname,
                                                    bool reads_peers) {
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
    return c10::make_intrusive<PairwiseGloo>(store, rank, size, options, reads_peers);
  } catch (const std::exception& error) {
    const std::string reason = error.what();  // may have the stack in the lines after the first
    throw RuntimeFault("[rank " + std::to_string(rank) + "] gloo: the " + std::to_string(size) +
                       " ranks did not connect: " + reason.substr(0, reason.find('\n')));
  }
}

}  // namespace shardlens::dist
