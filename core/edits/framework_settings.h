#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/edits/plan_edit.h"
#include "core/plan/plan.h"

namespace shardlens::plan {

// What drove the recorded program's training loop, or what its parameters are gathered by.
// kPytorch: the program itself, with PyTorch's FSDP. kSimpleFsdp: it gathers them itself, as
// SimpleFSDP does.
enum class Framework : uint8_t { kPytorch, kAccelerate, kTransformers, kTorchtitan, kSimpleFsdp };

// "pytorch", "accelerate", "transformers", "torchtitan", "simple_fsdp".
[[nodiscard]] std::string_view name_of(Framework framework);
[[nodiscard]] std::optional<Framework> framework_named(std::string_view name);

// A program whose settings can be changed.
struct FrameworkProgram {
  Framework framework = Framework::kPytorch;
  Dialect dialect = Dialect::kFsdp2;
  int64_t ranks = 1;       // data-parallel ranks, which the samples of a step are divided over
  std::string block = {};  // class of the model's blocks; "": it has none
};

// The lines of the framework's settings that make an edit that has an id: of the file of
// `accelerate launch` (YAML) or of its Accelerator, of transformers' TrainingArguments, or of
// torchtitan's job config (TOML). Empty: the framework has no such setting, so the program makes
// PlanEdit::pytorch's calls on the model that the framework has wrapped. Frameworks have rules of
// their own: accelerate also makes units of embeddings and heads under FSDP2, and torchtitan's
// selective checkpoints begin with the second block.
//
// kSimpleFsdp: what the program or its compiler does instead of calls of FSDP, as comments where it
// is no call.
//
// Source  accelerate 1.15: utils/launch.py, utils/dataclasses.py; transformers 5.24:
//         training_args.py; torchtitan 0.2.2: config/job_config.py.
[[nodiscard]] std::vector<std::string> framework_settings(const FrameworkProgram& program,
                                                          const PlanEdit& edit);

}  // namespace shardlens::plan
