#pragma once

#include "sim/cost/scaled_cost_model.h"
#include "sim/scenario/scenario.h"

namespace shardlens::sim {

// The step of `prediction`, which is evaluate(scenario), with its machine at other speeds. Plan,
// order and memory are the same, so only times are made again; `memory` of the result is empty.
// With all speeds 1 the figures are those of the prediction.
//
// Threads     may be called from any thread at the same time.
// Complexity  that of simulating one step of the plan.
[[nodiscard]] StepPrediction at_speeds(const Scenario& scenario,
                                       const Prediction& prediction,
                                       const Speeds& speeds);

}  // namespace shardlens::sim
