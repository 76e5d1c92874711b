#pragma once

#include "cli/run_options.h"
#include "cli/subcommand.h"
#include "cli/worker_process.h"

namespace shardlens::cli {

// shardlens capture: trains a model under a sharding plan in N processes and records every rank;
// flags in cli/run_options.h.
[[nodiscard]] Action add_capture_command(CLI::App& app);

// Makes one capture in `options.out`. `sink` receives the workers' output (empty: this process's
// stdout and stderr). Returns the number of recorded ranks. No other thread may run, see
// supervise(). Errors: as `shardlens capture`, also if a signal ended it.
int capture(const RunOptions& options, const LineSink& sink = {});

}  // namespace shardlens::cli
