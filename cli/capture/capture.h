#pragma once

#include <chrono>
#include <optional>

#include "cli/capture/worker_process.h"
#include "cli/flags/run_options.h"

namespace shardlens::cli {

// One capture into `options.out`: trains a model under a sharding plan in N processes and records
// every rank. `sink` gets what workers print (empty: this process's output). Returns how many ranks
// were recorded. A run that takes longer than `longest` is ended, with RuntimeFault. No other
// thread may run, see supervise(). Errors: as `shardlens capture`, also where a signal ended it.
int capture(const RunOptions& options,
            const LineSink& sink = {},
            std::optional<std::chrono::milliseconds> longest = {});

}  // namespace shardlens::cli
