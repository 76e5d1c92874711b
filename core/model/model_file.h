#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/units.h"
#include "core/json/json_reader.h"
#include "core/model/model_config.h"
#include "core/plan/resolved_plan.h"
#include "core/workload/step_settings.h"
#include "core/workload/workload.h"

// model.json, which describes any PyTorch model (docs/reference/model.md). A ModelConfig with a
// `file` is such a model: module_tree() and step_workload() take it from there.
namespace shardlens::plan {

struct RecordedTensor {  // a tensor of a recorded step
  Bytes bytes = 0;
  DType dtype = DType::kF32;
  bool model_dtype = false;  // has the dtype of the recorded parameters, which a plan may change
  bool parameter = false;    // is a parameter, or a view of one
  int64_t storage = 0;       // tensors with the same number share their memory
};

struct RecordedOperator {  // an operator of a recorded step
  Operator op;             // unit is unset; read and written are unset unless `has_traffic`
  // Bytes that the operator reads and writes, where these are not all of its inputs and outputs.
  bool has_traffic = false;
  bool grouped = false;                          // a product of all experts of a layer
  std::vector<uint32_t> inputs, outputs, saved;  // indices into RecordedStep::tensors
};

// A forward in order: modules that begin and end, and operators.
struct RecordedEvent {
  enum class Kind : uint8_t { kEnter, kLeave, kOperator };
  Kind kind = Kind::kOperator;
  uint32_t index = 0;  // of the operator
  std::string module;
};

struct RecordedStep {  // one step's operators and tensors
  int64_t batch = 0;
  std::optional<int64_t> seq;  // nullopt: the model takes no tokens
  std::vector<RecordedTensor> tensors;
  std::vector<RecordedOperator> operators;
  std::vector<RecordedEvent> forward;
};

struct ModelFile {  // the contents of model.json
  std::string name;
  DType dtype = DType::kF32;  // of the recorded parameters
  ModuleTree tree;
  std::vector<std::string> without_forward;  // modules that only contain others
  int64_t experts = 0;                       // of a layer
  std::vector<RecordedStep> steps;           // may be empty: plan works, simulate does not
};

// Errors: InputError with file and JSON pointer.
[[nodiscard]] std::shared_ptr<const ModelFile> read_model_file(const JsonNode& root);

// The settings that a scenario has where no flag sets them: batch and sequence of the first
// recorded step for a model file, otherwise `settings`.
[[nodiscard]] StepSettings default_step(const ModelConfig& config, StepSettings settings);

// The step of a recorded model under a plan. Sizes are affine in the batch: two recorded batches
// describe all. Bytes of tensors in the model's dtype follow the plan's param_dtype.
// Errors: InputError without steps, for a sequence that was not recorded, for another batch than
// the only recorded one, and for a unit whose forward runs more than once.
[[nodiscard]] Workload recorded_workload(const ModelConfig& config,
                                         const ResolvedPlan& plan,
                                         const StepSettings& settings);
// Only the hooks of a step, in the order of the recorded forward, or without one in that of
// named_modules().
[[nodiscard]] Workload hooks_of_file(const ModelFile& file, const ResolvedPlan& plan);

}  // namespace shardlens::plan
