#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/json/json_reader.h"
#include "core/plan/plan.h"
#include "core/plan/resolved_plan.h"

namespace shardlens::plan {

// A plan that a file of another program says.
struct ForeignPlan {
  Plan plan;
  std::optional<int64_t> world_size;  // nullopt: the file does not say it
  std::vector<std::string> notes;     // sentences: keys that change nothing here, and why
};

// The plan that accelerate makes of its config file (`accelerate launch --config_file`, FSDP of
// version 1 and 2, or data parallelism only), or of the fsdp_config of transformers'
// TrainingArguments, for a model with these modules. Every key is mapped, noted, or refused.
//
// Errors  InputError naming the key, what was expected, and the nearest valid name.
// Source  accelerate 1.15: utils/dataclasses.py (FullyShardedDataParallelPlugin), utils/launch.py
//         and commands/launch.py (defaults), utils/fsdp_utils.py (fsdp2_prepare_model),
//         accelerator.py (FSDP1); transformers 5.23: training_args.py (_process_fsdp_args).
[[nodiscard]] ForeignPlan plan_of_accelerate(const JsonNode& root, const ModuleTree& tree);

// A plan as a file of accelerate: that of `accelerate launch`, as YAML, or an fsdp_config as JSON.
enum class AccelerateFile : uint8_t { kLaunchYaml, kFsdpConfigJson };
// The text of such a file.
struct AccelerateText {
  std::string text;
  std::vector<std::string> notes;  // sentences: what accelerate does otherwise than the plan
};
// accelerate chooses units and their layout by its own rules; notes say where they differ from the
// plan's. Errors: InputError (the plan's source) naming what such a file cannot say.
[[nodiscard]] AccelerateText accelerate_text(const ResolvedPlan& plan, AccelerateFile file);

}  // namespace shardlens::plan
