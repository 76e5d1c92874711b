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

// ProcessGroupGloo with one worker thread over `store`. `hostname` selects the interface to listen
// on; empty: the address that this machine's name resolves to (several nodes). Errors: RuntimeFault
// if the ranks do not connect within `timeout`.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank,
                                                    int size,
                                                    std::chrono::milliseconds timeout,
                                                    const std::string& hostname);

// Rank `rank` of `size` alone in its process: collectives keep c10d's semantics and take as long as
// `timer` says (null: no time). All-gather output is the own shard repeated, reduce-scatter output
// the own chunk, all-reduce leaves its input: finite, and meaningless as numbers.
c10::intrusive_ptr<c10d::Backend> make_emulated_backend(
    int rank, int size, std::shared_ptr<const CollectiveTimer> timer);

}  // namespace shardlens::dist
