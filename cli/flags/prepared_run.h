#pragma once

#include <cstdint>

#include "core/plan/module_tree.h"
#include "core/plan/resolved_plan.h"

#include "cli/flags/run_options.h"

namespace shardlens::cli {

// What capture and a worker both derive from the flags before anything starts.
struct PreparedRun {
  plan::ModelConfig config;
  plan::ResolvedPlan plan;  // with --mesh and --precision applied
  int64_t tokens = 0;       // in the token file
  int64_t samples = 0;      // (tokens - 1) div seq
};

// Opens the model's config, the plan and the token file, resolves the plan for `world_size` ranks
// and checks what can be known before training: positions, number of samples, what the engine
// supports. Errors: InputError naming the file and value; UsageError for flags that contradict the
// plan file.
[[nodiscard]] PreparedRun prepare_run(const RunOptions& options, int64_t world_size);

// Model and plan alone, for any plan that resolves; no token file.
[[nodiscard]] PreparedRun resolve_run(const RunOptions& options, int64_t world_size);

// --plan or --strategy with --mesh and --precision.
[[nodiscard]] plan::Plan plan_of(const RunOptions& options, const plan::ModuleTree& tree);

// Number of tokens in a token file, by its name's ending: ".u32.bin" 4 bytes each, ".bin" 2, any
// other 1. Errors: InputError if it cannot be opened or its size is no multiple.
[[nodiscard]] int64_t count_tokens(const std::filesystem::path& path);

}  // namespace shardlens::cli
