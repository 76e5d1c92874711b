#pragma once

#include <cstdint>

#include "core/model/model_config.h"
#include "core/plan/resolved_plan.h"
#include "core/tree/module_tree.h"

#include "cli/flags/run_options.h"

namespace shardlens::cli {

// The settings that both capture and a worker derive from the flags before training.
struct PreparedRun {
  plan::ModelConfig config;
  plan::ResolvedPlan plan;  // with --mesh and --precision applied
  int64_t tokens = 0;       // in the token file
  int64_t samples = 0;      // (tokens - 1) / seq, rounded down
};

// Opens the model's config, the plan and the token file, resolves the plan for `world_size` ranks
// and checks everything that is known before training: number of positions and of samples, and
// features that the engine does not support. Errors: InputError naming the file and value;
// UsageError for flags that contradict the plan file.
[[nodiscard]] PreparedRun prepare_run(const RunOptions& options, int64_t world_size);

// Only model and plan, without a token file; accepts any plan that resolves.
[[nodiscard]] PreparedRun resolve_run(const RunOptions& options, int64_t world_size);

// The plan of --plan or --strategy with --mesh and --precision applied.
[[nodiscard]] plan::Plan plan_of(const RunOptions& options, const plan::ModuleTree& tree);

// The plan of --plan or, without it, a recorded run's `own` plan, changed to the --strategy and the
// --mesh that were given (plan::with_strategy).
[[nodiscard]] plan::Plan changed_plan(const RunOptions& options,
                                      bool strategy_given,
                                      plan::Plan own,
                                      const plan::ModuleTree& tree);

// Number of tokens in a token file. The bytes per token depend on the file name: ".u32.bin" 4,
// ".bin" 2, any other 1. Errors: InputError if the file cannot be opened or its size is not a
// multiple of that.
[[nodiscard]] int64_t count_tokens(const std::filesystem::path& path);

}  // namespace shardlens::cli
