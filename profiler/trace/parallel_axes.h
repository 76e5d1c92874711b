#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan/plan.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::trace {

// The kind of parallelism of a process group, by how the program describes the group.
enum class ParallelAxis : uint8_t {
  kData,      // replicas and shards of FSDP and DDP, also those of experts
  kTensor,    // parts of each operator
  kContext,   // parts of the sequence
  kExpert,    // experts of a mixture
  kPipeline,  // stages
};
[[nodiscard]] std::string_view name_of(ParallelAxis axis);  // "tensor", …

// The axis of a group with this description: "mesh_tp", "ep", "TENSOR_MODEL_PARALLEL_GROUP", …;
// nullopt: the description names none ("default_pg", "undefined", "").
[[nodiscard]] std::optional<ParallelAxis> axis_of(std::string_view description);

// A dimension along which the model is divided, not only its parameters and its batch.
struct ModelAxis {
  ParallelAxis axis = ParallelAxis::kTensor;
  std::string group;  // description of its process group
  int64_t ranks = 0;
  friend bool operator==(const ModelAxis&, const ModelAxis&) = default;
};
// The axes of a rank's process groups that have several ranks, without kData; the largest of each.
[[nodiscard]] std::vector<ModelAxis> model_axes(const std::vector<ProcessGroup>& groups);
// "tensor parallelism over 2 ranks (process group mesh_tp) and …".
[[nodiscard]] std::string words_of(const std::vector<ModelAxis>& axes);

// The process groups that run.json (as text) lists; empty if it lists none.
[[nodiscard]] std::vector<ProcessGroup> groups_of_run(std::string_view run_json);
// Adds to the plan of a recorded run the tensor parallelism that older recorders left out of it.
// They wrote the shapes of a rank's own part to model.json, or before that those of whole
// parameters. `groups`: of the run.
void add_tensor_axis(plan::Plan& plan,
                     const std::vector<ProcessGroup>& groups,
                     std::string_view run_json);
// The ranks of a run that a plan is about: those of a stage of a pipeline.
[[nodiscard]] int64_t ranks_of_plan(int64_t world_size, const std::vector<ModelAxis>& axes);
// The recorder's notes in run.json: why there is no plan, and what it could not record.
[[nodiscard]] std::vector<std::string> notes_of_run(std::string_view run_json);

}  // namespace shardlens::trace
