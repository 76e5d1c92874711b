#include "sim/predict/predict.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "sim/cost/gemm_model.h"
#include "sim/cost/gpu_cost_model.h"
#include "sim/engine/bucket_costs.h"

namespace shardlens::sim {

Target target_of(const HardwareSpec& hardware, const CostModel& costs) {
  Target target;
  target.name = hardware.name;
  target.costs = &costs;
  target.ranks = hardware.ranks();
  target.memory = hardware.gpu.memory;
  target.outside = std::llround(hardware.software.step_us * 1e3);
  return target;
}

void require_simulator_support(const plan::ResolvedPlan& plan, const HardwareSpec& hardware) {
  const GpuCostModel model(hardware);
  require_simulator_support(plan, target_of(hardware, model));
}

void require_simulator_support(const plan::ResolvedPlan& plan, const Target& target) {
  const auto refuse = [&plan](std::string_view key) {
    throw InputError(fmt::format("{}#/{}", plan.plan.source, key),
                     "not supported by the simulator yet");
  };
  if (plan.world_size > target.ranks) {
    throw InputError("--world-size", fmt::format("{} ranks, but {} has {} GPUs", plan.world_size,
                                                 target.name, target.ranks));
  }
  for (const plan::Unit& unit : plan.units) {
    if (unit.cpu_offload) {
      refuse("cpu_offload");
    }
    if (unit.api == plan::Api::kReplicate && plan.replicate > 1 && plan.shard > 1) {
      throw InputError(fmt::format("{}#/mesh", plan.plan.source),
                       "replicated units on a mesh with both axes are not supported by the "
                       "simulator yet");
    }
  }
}

Prediction predict(const plan::Workload& workload,
                   const plan::ResolvedPlan& plan,
                   const HardwareSpec& hardware,
                   const RunSettings& settings) {
  const GpuCostModel model(hardware);
  return predict(workload, plan, target_of(hardware, model), settings);
}

Prediction predict(const plan::Workload& workload,
                   const plan::ResolvedPlan& plan,
                   const Target& target,
                   const RunSettings& settings) {
  require_simulator_support(plan, target);
  schedule::PlannedStep planned =
      schedule::planned_step(workload, plan, kSteadyStep, static_cast<int>(settings.accumulate),
                             settings.sync_every_microbatch);
  StepCosts costs = step_costs(workload, plan, *target.costs);
  add_bucket_costs(plan, planned, *target.costs, costs);
  Prediction out{figures_of(simulate(workload, plan, planned, costs, settings.simulation),
                            step_memory(workload, plan, planned, memory_options(target, settings)),
                            workload, plan, target, settings),
                 {}};
  out.planned = std::move(planned);
  return out;
}

MemoryOptions memory_options(const Target& target, const RunSettings& settings) {
  MemoryOptions memory;
  memory.capacity = target.memory > 0 ? target.memory : std::numeric_limits<Bytes>::max();
  memory.optimizer_states = settings.optimizer_states;
  memory.list_alive = settings.list_alive;
  memory.more_microbatches = settings.simulation.more_microbatches > 0;
  return memory;
}

Figures figures_of(SimulatedStep step,
                   StepMemory memory,
                   const plan::Workload& workload,
                   const plan::ResolvedPlan& plan,
                   const Target& target,
                   const RunSettings& settings) {
  Figures out;
  out.step = std::move(step);
  out.memory = std::move(memory);
  out.alike = out.step.alike && out.memory.alike;
  out.busy = std::max_element(out.step.ranks.begin(), out.step.ranks.end(),
                              [](const SimulatedRank& a, const SimulatedRank& b) {
                                return a.busy.compute < b.busy.compute;
                              })
                 ->busy;
  // The loader, clipping, metrics: the GPU waits for the host.
  out.step.duration += target.outside + target.outside_communication;
  out.busy.idle += target.outside;
  out.busy.communication += target.outside_communication;
  out.busy.exposed_comm += target.outside_communication;
  const auto tokens =
      static_cast<double>(plan.world_size * workload.batch * workload.seq * settings.accumulate);
  out.tokens_per_s = tokens / (static_cast<double>(out.step.duration) * 1e-9);
  return out;
}

trace::Run predicted_run(const plan::Workload& workload,
                         const plan::ResolvedPlan& plan,
                         const Prediction& prediction,
                         const HardwareSpec& hardware,
                         const RunSettings& settings) {
  trace::Run run = simulated_run(workload, plan, prediction.planned, prediction.step,
                                 {.host = settings.simulation.host,
                                  .first_step = kSteadyStep - 1,
                                  .device_name = hardware.gpu.name});
  run.planned = {plan, workload, settings.accumulate, settings.sync_every_microbatch};
  return run;
}

double model_flops_utilization(const plan::ModelConfig& config,
                               const plan::ResolvedPlan& plan,
                               const HardwareSpec& hardware,
                               int64_t seq,
                               double tokens_per_s) {
  int64_t parameters = 0;
  for (const plan::Parameter& parameter : plan.tree.parameters) {
    parameters += parameter.numel;
  }
  const double per_token = 6.0 * static_cast<double>(parameters) +
                           12.0 * static_cast<double>(config.layers * config.hidden_size * seq);
  const UnitId unit = plan.units.size() > 1 ? 1 : 0;
  const double peak = peak_tflops(hardware.gpu, plan.param_dtype(unit)) * 1e12;
  return per_token * tokens_per_s / (static_cast<double>(plan.world_size) * peak);
}

}  // namespace shardlens::sim
