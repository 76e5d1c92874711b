#pragma once

#include <vector>

#include "profiler/analysis/figures/communication_figures.h"
#include "sim/engine/priced_step.h"
#include "sim/engine/simulator.h"
#include "sim/scenario/predict.h"

namespace shardlens::sim {

// The communication of a rank of a step, which must have been simulated with times: of the one
// whose figures are the step's. The groups are those of the plan; what a measured machine
// communicates outside of the plan has no group and no count.
[[nodiscard]] std::vector<analysis::CommunicationFigures> predicted_communication(
    const PricedStep& step, const SimulatedStep& simulated, const Target& target);

}  // namespace shardlens::sim
