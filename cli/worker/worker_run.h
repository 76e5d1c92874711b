#pragma once

#include "cli/flags/run_options.h"
#include "cli/worker/worker_environment.h"

namespace shardlens::cli {

// Trains as one rank: joins the world, shards the model, loads its weights from the checkpoint (or
// initializes them from --seed if the model directory has none), runs the steps, and writes the
// trace, the metrics (only rank 0, or the only process of an emulated world) and checkpoints.
//
// SIGINT and SIGTERM end training after the current step, or after 5 s at the latest. The recording
// until then is readable, and the process exits with code 4.
//
// Errors      every shardlens::Error, and LibTorch's exceptions. The recording is written before
//             the error is thrown.
void run_worker(const RunOptions& options, const Placement& placement);

}  // namespace shardlens::cli
