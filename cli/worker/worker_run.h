#pragma once

#include "cli/flags/run_options.h"
#include "cli/worker/worker_environment.h"

namespace shardlens::cli {

// Trains as one rank: joins the world, shards the model, fills it from the checkpoint (or from
// --seed where the model directory has none), runs the steps, writes the trace, metrics (rank 0, or
// the only process of an emulated world) and the checkpoint.
//
// SIGINT and SIGTERM end training after the step under way, or after 5 s in any case; the recording
// so far stays readable and the process exits with 4.
//
// Errors      every shardlens::Error, and what LibTorch throws. The recording is written out
//             before.
void run_worker(const RunOptions& options, const Placement& placement);

}  // namespace shardlens::cli
