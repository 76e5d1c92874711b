#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/model/model_config.h"
#include "sim/scenario/recorded_run.h"
#include "sim/scenario/scenario.h"

namespace shardlens::sim {

// A step that was predicted from the model of a run, not from its recorded operators.
struct PricedMesh {
  plan::MeshSizes mesh;  // every axis
  std::string title;     // of the plan: "1 block a unit, shard 4, tensor 2, …"; "": the run's own
  plan::Plan plan;
  plan::StepSettings step;
  Nanoseconds duration = 0;
  std::optional<PredictedInterval> interval;  // 90 %
  Bytes peak_reserved = 0;
};

// The best plan on another mesh than that of a recorded run.
//
// [Note: Prices of other meshes] A recorded run has the operators of its own mesh only. So both the
// run's own plan and those of other meshes are predicted from the model (scenario_of_model()): its
// operators as the recorded ones, and what was not measured, such as collectives between other
// numbers of ranks, by a spec, if one is given.
struct MeshProposal {
  std::string refusal;  // why none is proposed; "": one is
  std::string machine;
  std::optional<PricedMesh> own;   // the run's own plan
  std::optional<PricedMesh> best;  // set if there is no refusal
  size_t searched = 0;             // other meshes that have a plan, or none that is fast enough
  size_t refused = 0;              // on which the model does not run, or was not priced
  std::string why_refused;         // of the first of these
  std::vector<std::string> not_tried;

  [[nodiscard]] Nanoseconds change() const { return best->duration - own->duration; }
};

struct MeshProposalOptions {               // what is known of the run besides its traces
  std::optional<plan::ModelConfig> model;  // nullopt: the run's, if it has one
  std::string hardware;                    // as of --hardware; "": only what was measured
  Bytes memory_limit = 0;                  // as AdviseOptions
  unsigned threads = 0;                    // as SearchOptions
  const std::atomic<bool>* cancelled = nullptr;
};

// Searches the other meshes of a run's ranks (sim/search/search.h) with as many samples in a step.
//
// Errors  UsageError and InputError for a `hardware` that cannot be read.
[[nodiscard]] MeshProposal propose_mesh(const RecordedRun& run,
                                        const MeshProposalOptions& options = {});

}  // namespace shardlens::sim
