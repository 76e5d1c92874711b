#include "cli/flags/saved_run.h"

#include <optional>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/checkpoint_reader.h"
#include "core/checkpoint/save_directory.h"
#include "core/weights/safetensors.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

void check_steps(const RunOptions& options, const SavedRun& run) {
  if (run.first_step >= options.steps) {
    throw UsageError(fmt::format("--steps {}: {} is at step {} already; --steps counts all steps",
                                 options.steps, run.checkpoint.string(), run.first_step));
  }
  if (options.warmup >= options.steps - run.first_step) {
    throw UsageError(
        fmt::format("--warmup {}: expected less than {}, the steps from {} on; otherwise no step "
                    "is recorded",
                    options.warmup, options.steps - run.first_step, run.checkpoint.string()));
  }
}

void check_save(const RunOptions& options, const SavedRun& run) {
  if (options.save.empty() || options.save_format == SaveFormat::kFull) {
    return;
  }
  const auto obstacles = checkpoint::obstacles_after(options.save, run.first_step);
  if (!obstacles.empty()) {
    throw UsageError(fmt::format("--save {}: {} is in the way of a checkpoint; move it",
                                 options.save.string(), obstacles.front().string()));
  }
  const auto saved = checkpoint::saved_steps(options.save);
  if (!saved.empty() && (run.checkpoint.empty() || saved.back().step > run.first_step)) {
    throw UsageError(fmt::format(
        "--save {0}: it has {1}, which this run does not continue; use --resume {0}, or another "
        "directory",
        options.save.string(), saved.back().path.filename().string()));
  }
}

}  // namespace

SavedRun find_saved_run(const RunOptions& options) {
  SavedRun run;
  if (!options.resume.empty()) {
    if (const auto found = checkpoint::latest_checkpoint(options.resume)) {
      run.checkpoint = *found;
      run.first_step = checkpoint::Reader::open(*found).index().position.step;
    } else if (models::has_checkpoint(options.resume)) {
      run.weights = options.resume;
    }
    run.unfinished = checkpoint::unfinished_saves(options.resume);
    if (run.checkpoint.empty() && run.weights.empty()) {
      const std::string broken =
          run.unfinished.empty()
              ? ""
              : fmt::format("; {} was interrupted", run.unfinished.back().string());
      throw InputError(options.resume.string(),
                       "has no checkpoint and no safetensors to resume from" + broken);
    }
    check_steps(options, run);
  }
  check_save(options, run);
  return run;
}

}  // namespace shardlens::cli
