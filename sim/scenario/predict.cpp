#include "sim/scenario/predict.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/mesh/mesh.h"
#include "core/schedule/planned/planned.h"

namespace shardlens::sim {
namespace {

bool shards_gradients(const plan::ResolvedPlan& plan) {
  return plan.shards() > 1 &&
         std::any_of(plan.units.begin(), plan.units.end(),
                     [](const plan::Unit& unit) { return unit.api != plan::Api::kReplicate; });
}

}  // namespace

const SimulatedRank& shown_rank(const SimulatedStep& step) {
  return *std::max_element(step.ranks.begin(), step.ranks.end(),
                           [](const SimulatedRank& a, const SimulatedRank& b) {
                             return a.figures.compute < b.figures.compute;
                           });
}

Nanoseconds norm_communication(const plan::ResolvedPlan& plan, const Target& target) {
  return shards_gradients(plan) ? target.norm_communication : 0;
}

Target target_of(const HardwareSpec& hardware, const CostModel& costs) {
  Target target;
  target.name = hardware.name;
  target.costs = &costs;
  target.ranks = hardware.ranks();
  target.memory = hardware.gpu.memory;
  target.outside_memory = hardware.outside;
  target.outside = std::llround(hardware.software.step_us * 1e3);
  return target;
}

void require_simulator_support(const plan::ResolvedPlan& plan, const Target& target) {
  if (plan.world_size > target.ranks) {
    throw InputError("--world-size", fmt::format("{} ranks, but {} has {} GPUs", plan.world_size,
                                                 target.name, target.ranks));
  }
  for (const plan::Unit& unit : plan.units) {
    if (unit.api == plan::Api::kReplicate && plan.replicas() > 1 && plan.shards() > 1) {
      throw InputError(fmt::format("{}#/mesh", plan.plan.source),
                       "replicated units on a mesh with both axes are not supported by the "
                       "simulator yet");
    }
  }
}

PricedStep priced_step(plan::Workload workload,
                       plan::ResolvedPlan plan,
                       const Target& target,
                       const plan::StepSettings& settings,
                       std::vector<RankWorkload> of_ranks) {
  require_simulator_support(plan, target);
  schedule::PlannedStep planned = schedule::planned_step(workload, plan, kSteadyStep, settings);
  return priced_step(std::move(workload), std::move(plan), std::move(planned), *target.costs,
                     std::move(of_ranks));
}

StepPrediction predict(const PricedStep& step,
                       const Target& target,
                       const plan::StepSettings& settings,
                       const PredictOptions& options) {
  return figures_of(simulate(step, options.simulation),
                    step_memory(step, memory_options(target, settings, options)), step, target,
                    settings);
}

MemoryOptions memory_options(const Target& target,
                             const plan::StepSettings& settings,
                             const PredictOptions& options) {
  MemoryOptions memory;
  // torchtitan 0.3 runs with torch 2.15, which frees it.
  memory.keeps_last_gradient = !plan::is_engine(settings.program) &&
                               plan::operators_of(settings.program) != plan::Program::kTorchtitan03;
  memory.delays_reuse = options.simulation.host == HostMode::kAhead;
  memory.expandable_segments = plan::expands_segments(settings);
  memory.capacity = target.memory > 0 ? target.available() : std::numeric_limits<Bytes>::max();
  memory.optimizer_states = settings.optimizer_states();
  memory.list_alive = options.list_alive;
  memory.keep_history = options.memory_history;
  memory.more_microbatches = options.simulation.more_microbatches > 0;
  return memory;
}

StepPrediction figures_of(SimulatedStep simulated,
                          StepMemory memory,
                          const PricedStep& step,
                          const Target& target,
                          const plan::StepSettings& settings) {
  StepPrediction out;
  out.step = std::move(simulated);
  out.memory = std::move(memory);
  out.alike = out.step.alike && out.memory.alike;
  out.figures = shown_rank(out.step).figures;
  // During data loading, gradient clipping and metrics the GPU waits for the host.
  const Nanoseconds communication =
      target.outside_communication + norm_communication(*step.plan, target);
  out.step.duration += target.outside + communication;
  out.figures.idle += target.outside;
  out.figures.comm += communication;
  out.figures.exposed_comm += communication;
  // Ranks that divide an operator have the same samples; those of a context have parts of them, of
  // Workload::seq tokens.
  const int64_t samplers = step.plan->world_size / step.plan->mesh.size(mesh::kTensor);
  const auto tokens = static_cast<double>(samplers * step.workload->batch * step.workload->seq *
                                          settings.accumulate);
  out.tokens_per_s = tokens / (static_cast<double>(out.step.duration) * 1e-9);
  return out;
}

}  // namespace shardlens::sim
