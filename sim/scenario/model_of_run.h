#pragma once

#include <optional>
#include <string>

#include "core/model/model_config.h"
#include "core/plan/mesh_sizes.h"
#include "sim/scenario/recorded_run.h"
#include "sim/scenario/scenario.h"

namespace shardlens::sim {

// Whether a plan's mesh divides operators otherwise than the run's own, so that it can only be
// predicted from the run's model.
[[nodiscard]] bool divides_otherwise(const RecordedRun& run, const plan::MeshSizes& mesh);

// The model of the run: a capture's, or of the config.json that shardlens.record wrote next to the
// traces; nullopt: there is none.
// Errors  InputError for a config.json that is not valid.
[[nodiscard]] std::optional<plan::ModelConfig> own_model(const RecordedRun& run);

// The run's own plan and step, of its model, on the machine of the run: for plans that
// divides_otherwise(). Times are those of [Note: Operators of other degrees]; memory is the
// model's. Prediction::baseline compares the own plan, predicted in this way, with the run.
//
// `hardware`: as of --hardware; "": only what was measured.
// Errors  UsageError and InputError for a `hardware` that cannot be read; InputError if the model
// is
//         not the run's or cannot be predicted under the run's plan, and for runs whose operators
//         are not those of one rank's model (unequal ranks, CUDA graphs).
[[nodiscard]] Scenario scenario_of_model(const RecordedRun& run,
                                         const plan::ModelConfig& config,
                                         const std::string& hardware = "");

// `plan` on another mesh: without keys that need an axis which it does not have.
[[nodiscard]] plan::Plan on_mesh(plan::Plan plan, const plan::MeshSizes& mesh);

}  // namespace shardlens::sim
