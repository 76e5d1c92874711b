#pragma once

#include "cli/run_options.h"
#include "cli/subcommand.h"
#include "cli/worker_process.h"

namespace shardlens::cli {

// shardlens capture: trains a model under a sharding plan in N processes and records every rank;
// flags in cli/run_options.h.
[[nodiscard]] Action add_capture_command(CLI::App& app);

// One capture into `options.out`; `sink` gets what workers print (empty: this process's output).
// Returns how many ranks were recorded. No other thread may run, see supervise(). Errors: as
// `shardlens capture`, also where a signal ended it.
int capture(const RunOptions& options, const LineSink& sink = {});

}  // namespace shardlens::cli
