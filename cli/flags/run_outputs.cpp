#include "cli/flags/run_outputs.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/checkpoint/checkpoint_reader.h"
#include "core/checkpoint/save_directory.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_place(const char* flag, const fs::path& path, const std::string& lost) {
  throw UsageError(fmt::format("{} {}: {}; choose another directory", flag, path.string(), lost));
}

void add_common(const RunOptions& options, Inputs& inputs) {
  inputs.add("--model", options.model);
  inputs.add("--plan", options.plan);
  inputs.add("--tokens", options.tokens);
  inputs.add("--hardware", options.hardware);
}

// A full model replaces files, checkpoints become folders of their own.
std::string lost_by_saving(const RunOptions& options) {
  Inputs inputs;
  add_common(options, inputs);
  if (options.save_format == SaveFormat::kFull) {
    inputs.add("--resume", options.resume);
    for (const char* name : {"config.json", "model.safetensors"}) {
      if (std::string lost = inputs.lost_by_writing(options.save / name); !lost.empty()) {
        return "its " + std::string(name) + " " + lost;
      }
    }
    return "";
  }
  if (!options.resume.empty() && checkpoint::saved_steps(options.resume).empty()) {
    inputs.add("--resume", options.resume);  // not a directory that a run continues to save in
  }
  return inputs.lost_by_adding_to(options.save);
}

}  // namespace

Inputs inputs_of(const RunOptions& options) {
  Inputs inputs;
  add_common(options, inputs);
  inputs.add("--resume", options.resume);
  return inputs;
}

void check_outputs(const RunOptions& options) {
  if (const std::string lost = inputs_of(options).lost_by_emptying(options.out); !lost.empty()) {
    refuse_place("--out", options.out, lost);
  }
  if (options.save.empty()) {
    return;
  }
  if (same_output(options.save, options.out)) {
    refuse_place("--save", options.save, "is also what --out writes");
  }
  if (const std::string lost = lost_by_saving(options); !lost.empty()) {
    refuse_place("--save", options.save, lost);
  }
}

}  // namespace shardlens::cli
