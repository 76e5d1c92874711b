#include "sim/scenario/other_speeds.h"

#include <cmath>
#include <memory>

#include "sim/engine/priced_step.h"
#include "sim/engine/simulator.h"

namespace shardlens::sim {

StepPrediction at_speeds(const Scenario& scenario,
                         const Prediction& prediction,
                         const Speeds& speeds) {
  Target target = scenario.machine->target();
  const ScaledCostModel model(*target.costs, speeds);
  PricedStep step = prediction.priced;
  step.costs = std::make_shared<const StepCosts>(costs_of(step, model));
  const auto scaled = [](Nanoseconds time, double speed) {
    return std::llround(static_cast<double>(time) / speed);
  };
  target.costs = &model;
  target.outside = scaled(target.outside, speeds.host);
  target.norm_communication = scaled(target.norm_communication, speeds.bandwidth);
  target.outside_communication = scaled(target.outside_communication, speeds.bandwidth);
  SimulationOptions options;
  options.host = prediction.host;
  options.waits_for_loss = scenario.waits_for_loss;
  options.keep_times = false;
  options.rank_slowdown = scenario.rank_slowdown;
  return figures_of(simulate(step, options), {}, step, target, prediction.settings);
}

}  // namespace shardlens::sim
