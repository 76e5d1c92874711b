#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>

#include <ATen/core/TensorBody.h>
#include <c10/util/intrusive_ptr.h>

#include "core/base/collective_timer.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace shardlens::dist {

// A backend that can gather chunks straight to where they are used.
class PartsGather {
 public:
  virtual ~PartsGather() = default;
  [[nodiscard]] virtual bool gathers_parts() const = 0;
  // See Communicator::all_gather_parts(). Blocks until it is done.
  virtual void gather_parts(const at::Tensor& output,
                            const at::Tensor& input,
                            std::span<const int64_t> parts) = 0;
};

// ProcessGroupGloo with one worker thread; the ranks connect through `store`. `hostname` selects
// the network interface to listen on; empty: the address that this machine's name resolves to
// (several nodes). `reads_peers`: ranks of one machine read from each other's memory, if they may.
// Errors: RuntimeFault if the ranks do not connect within `timeout`.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank,
                                                    int size,
                                                    std::chrono::milliseconds timeout,
                                                    const std::string& hostname,
                                                    bool reads_peers = true);

// Emulates the process group of `size` ranks in the one process of rank `rank`. Collectives have
// c10d's interface and take the time that `timer` returns (null: no time). All-gather repeats this
// rank's shard, reduce-scatter returns this rank's chunk, all-reduce leaves its input unchanged:
// the values are finite but have no meaning.
c10::intrusive_ptr<c10d::Backend> make_emulated_backend(
    int rank, int size, std::shared_ptr<const CollectiveTimer> timer);

}  // namespace shardlens::dist
