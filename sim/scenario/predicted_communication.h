#pragma once

#include <vector>

#include "profiler/analysis/figures/communication_figures.h"
#include "sim/engine/priced_step.h"
#include "sim/engine/simulator.h"
#include "sim/scenario/predict.h"

namespace shardlens::sim {

// The communication of one rank of a step, which must have been simulated with times. The groups
// are those of the plan; what a measured machine communicates outside of the plan has no group and
// no count.
[[nodiscard]] std::vector<analysis::CommunicationFigures> predicted_communication(
    const PricedStep& step, const SimulatedRank& rank, const Target& target);

}  // namespace shardlens::sim
