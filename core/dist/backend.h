#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <c10/util/intrusive_ptr.h>

#include "core/base/collective_timer.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace shardlens::dist {

// ProcessGroupGloo with one worker thread; the ranks connect through `store`. `hostname` selects
// the network interface to listen on; empty: the address that this machine's name resolves to
// (several nodes). Errors: RuntimeFault if the ranks do not connect within `timeout`.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank,
                                                    int size,
                                                    std::chrono::milliseconds timeout,
                                                    const std::string& hostname);

// Emulates the process group of `size` ranks in the one process of rank `rank`. Collectives have
// c10d's interface and take the time that `timer` returns (null: no time). All-gather repeats this
// rank's shard, reduce-scatter returns this rank's chunk, all-reduce leaves its input unchanged:
// the values are finite but have no meaning.
c10::intrusive_ptr<c10d::Backend> make_emulated_backend(
    int rank, int size, std::shared_ptr<const CollectiveTimer> timer);

}  // namespace shardlens::dist
