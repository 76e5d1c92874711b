#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "cli/flags/run_options.h"

namespace shardlens::cli {

// The checkpoints that --resume and --save find on the disk.
struct SavedRun {
  std::filesystem::path checkpoint;  // to resume from; empty: none
  std::filesystem::path weights;     // the weights only, of a Hugging Face directory; empty: none
  int64_t first_step = 0;            // that is trained
  std::vector<std::filesystem::path> unfinished;  // interrupted saves in the directory of --resume
};

// Errors: InputError naming what --resume has if it is no checkpoint; UsageError if the checkpoint
// is at the last step already, if no step would be recorded, or if the directory of --save has
// checkpoints that this run does not continue, or other files in their place.
[[nodiscard]] SavedRun find_saved_run(const RunOptions& options);

}  // namespace shardlens::cli
