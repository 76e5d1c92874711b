#include "sim/scenario/scenario.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/mesh/mesh.h"
#include "core/model/families/model_family.h"
#include "core/model/step_workload.h"
#include "core/plan/resolve.h"
#include "core/workload/communications.h"
#include "sim/calibrate/replicated_observation.h"
#include "sim/cost/gemm_model.h"
#include "sim/engine/simulated_run.h"
#include "sim/hardware/stacks.h"
#include "sim/scenario/predicted_communication.h"
#include "sim/scenario/traced_plan.h"

namespace shardlens::sim {
namespace {

SimulatedRunOptions trace_options(const Prediction& prediction) {
  SimulatedRunOptions out;
  out.host = prediction.host;
  out.first_step = kSteadyStep - 1;
  out.device_name = prediction.device;
  return out;
}

trace::Run planned(trace::Run run, const Prediction& prediction) {
  const PricedStep& step = prediction.priced;
  run.planned = trace::PlannedInputs{*step.plan, *step.workload, prediction.settings, {}};
  return run;
}

// Errors: InputError for products in a dtype that the machine has none of.
void require_products(const Scenario& scenario) {
  const std::optional<plan::MatmulDType> dtype = scenario.step.software.matmul_dtype;
  const std::optional<HardwareSpec>& spec = scenario.machine->spec();
  if (!dtype || (spec && tflops_of(spec->gpu, *dtype) > 0)) {
    return;
  }
  std::vector<std::string> having;
  for (const std::string& name : hardware_names()) {
    if (tflops_of(load_hardware(name).gpu, *dtype) > 0) {
      having.push_back(name);
    }
  }
  throw InputError(
      "matmul_dtype",
      fmt::format("{} has no products in {}; of the built-in specs these have: {}",
                  scenario.machine->target().name, name_of(*dtype), plan::quoted_list(having)));
}

// Errors: InputError for other software than that under which the machine's times were measured.
void require_measured(const Scenario& scenario) {
  if (scenario.machine->calibration() == nullptr) {
    return;
  }
  const std::shared_ptr<const RecordedRun>& run = scenario.model->run();
  const plan::Software measured =
      run == nullptr ? plan::Software{} : run->observation().settings.software;
  plan::Software asked = scenario.step.software;
  asked.expandable_segments = measured.expandable_segments;  // of memory, which is not measured
  if (asked != measured) {
    throw InputError("software",
                     "the machine's times were measured under other software; record a run under "
                     "this one, or take a spec such as 8xH100");
  }
}

PricedStep priced_of(const Scenario& scenario) {
  require_measured(scenario);
  require_products(scenario);
  plan::ResolvedPlan plan =
      scenario.model->resolve(as_run_by(scenario.step.program, scenario.plan), scenario.world_size);
  plan::Workload workload = scenario.model->workload(plan, scenario.step);
  std::vector<RankWorkload> of_ranks = scenario.model->workloads_of_ranks(plan, scenario.step);
  return priced_step(std::move(workload), std::move(plan), scenario.machine->target(),
                     scenario.step, std::move(of_ranks));
}

}  // namespace

ScenarioModel::ScenarioModel(plan::ModelConfig config)
    : config_(std::move(config)), tree_(plan::module_tree(*config_)) {}

ScenarioModel::ScenarioModel(const plan::DecoderShape& shape)
    : shape_(shape), tree_(plan::decoder_tree(shape)) {}

ScenarioModel::ScenarioModel(std::shared_ptr<const RecordedRun> run)
    : run_(std::move(run)), tree_(run_->tree()), pytorch_(run_->observation().pytorch) {}

ScenarioModel::ScenarioModel(plan::ModelConfig config,
                             bool pytorch,
                             std::optional<Baseline> baseline)
    : config_(std::move(config)),
      tree_(plan::module_tree(*config_)),
      pytorch_(pytorch),
      baseline_(std::move(baseline)) {}

const Baseline* ScenarioModel::baseline() const {
  return run_ != nullptr ? &run_->baseline() : baseline_ ? &*baseline_ : nullptr;
}

const plan::ModelConfig* ScenarioModel::config() const {
  return run_ != nullptr ? run_->config() : config_ ? &*config_ : nullptr;
}

plan::ResolvedPlan ScenarioModel::resolve(const plan::Plan& plan, int64_t world_size) const {
  plan::ResolvedPlan out =
      run_ == nullptr
          ? plan::resolve(plan, tree_, world_size)
          : plan::resolve(on_recorded_modules(run_->observation(), plan), tree_, world_size);
  out.copies_in_group_of_one = pytorch_;
  add_groups(out);
  return out;
}

void ScenarioModel::add_groups(plan::ResolvedPlan& plan) const {
  if (run_ != nullptr) {
    plan::add_groups_of(run_->observation().workload, run_->observation().plan, plan);
  }
}

plan::Workload ScenarioModel::workload(const plan::ResolvedPlan& plan,
                                       const plan::StepSettings& settings) const {
  if (run_ != nullptr) {
    return run_->workload(plan, settings);
  }
  if (const auto [axis, size] = plan::divided_axis(plan.plan.mesh); shape_ && size > 1) {
    throw InputError(fmt::format("{}#/mesh/{}", plan.plan.source, axis),
                     fmt::format("{} {}: layers of a shape are not simulated in parts yet; "
                                 "expected 1, or a model's config.json",
                                 axis, size));
  }
  return shape_ ? plan::decoder_workload(*shape_, plan, settings)
                : plan::step_workload(*config_, plan, settings);
}

std::vector<RankWorkload> ScenarioModel::workloads_of_ranks(
    const plan::ResolvedPlan& plan, const plan::StepSettings& settings) const {
  return run_ == nullptr ? std::vector<RankWorkload>() : run_->workloads_of_ranks(plan, settings);
}

std::string stack_or_default(const std::string& given,
                             const std::string& hardware,
                             const plan::ModelConfig& config) {
  const Stack* nearest =
      given.empty() && config.file == nullptr ? default_stack(hardware) : nullptr;
  // Published steps on newer GPUs are 26 % off at the median with this engine's operators.
  // Source  bench/RESULTS.md, "Without --stack"
  return nearest == nullptr || is_of(*nearest, load_hardware(hardware)) ? given
         : plan::torchtitan_refusal(config).empty() ? std::string(kTorchtitanStack)
                                                    : std::string(kTransformersStack);
}

Scenario own_scenario(std::shared_ptr<const RecordedRun> run) {
  Scenario out;
  out.plan = run->observation().plan.plan;
  out.world_size = run->observation().plan.world_size;
  out.step = run->observation().settings;
  out.machine = run->machine();
  out.model = std::make_shared<const ScenarioModel>(std::move(run));
  return out;
}

Prediction evaluate(const Scenario& scenario, const Detail& detail) {
  const TargetMachine& machine = *scenario.machine;
  Prediction out;
  out.priced = priced_of(scenario);
  out.settings = scenario.step;
  out.host = scenario.host.value_or(machine.host());
  PredictOptions options;
  options.list_alive = detail.alive;
  options.memory_history = detail.history;
  options.simulation.host = out.host;
  options.simulation.waits_for_loss = scenario.waits_for_loss;
  options.simulation.keep_times = detail.timeline || detail.communication;
  options.simulation.rank_slowdown = scenario.rank_slowdown;
  static_cast<StepPrediction&>(out) = predict(out.priced, machine.target(), scenario.step, options);
  if (detail.communication) {
    out.communication = predicted_communication(out.priced, out.step, machine.target());
  }
  out.machine = machine.target().name;
  out.capacity = machine.target().memory;
  out.available = machine.target().available();
  out.outside_memory = machine.target().outside_memory;
  out.device = machine.spec() ? machine.spec()->gpu.name : out.machine;
  const plan::ModelConfig* config = scenario.model->config();
  if (machine.spec() && machine.calibration() == nullptr && config != nullptr &&
      config->file == nullptr) {
    out.mfu = model_flops_utilization(
        *config, *out.priced.plan, *machine.spec(),
        out.priced.workload->seq * out.priced.plan->mesh.size(mesh::kContext), out.tokens_per_s);
  }
  if (machine.calibration() != nullptr) {
    out.unknown = machine.calibration()->unknown;
    out.extrapolated = extrapolations(out.priced, *machine.target().costs, scenario.step.accumulate,
                                      out.step.duration);
  }
  if (const Baseline* baseline = scenario.model->baseline()) {
    out.baseline = *baseline;
  }
  return out;
}

std::string refusal_of(const Scenario& scenario) {
  try {
    (void)priced_of(scenario);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

trace::Run predicted_run(const Prediction& prediction) {
  return planned(simulated_run(prediction.priced, prediction.step, trace_options(prediction)),
                 prediction);
}

trace::Run predicted_run(const Prediction& prediction, int64_t rank) {
  std::vector<trace::Trace> one;
  one.push_back(predicted_trace(prediction, rank));
  return planned(trace::Run::of(std::move(one)), prediction);
}

trace::Trace predicted_trace(const Prediction& prediction, int64_t rank) {
  return simulated_trace(prediction.priced, prediction.step, rank, trace_options(prediction));
}

double model_flops_utilization(const plan::ModelConfig& config,
                               const plan::ResolvedPlan& plan,
                               const HardwareSpec& hardware,
                               int64_t seq,
                               double tokens_per_s) {
  // Frozen weights have no gradients: their products are two of three.
  plan::ModuleTree frozen;
  std::ranges::copy_if(plan.tree.parameters, std::back_inserter(frozen.parameters),
                       [](const plan::Parameter& each) { return !each.requires_grad; });
  const double per_token = 6.0 * static_cast<double>(plan::active_parameters(config, plan.tree)) -
                           2.0 * static_cast<double>(plan::active_parameters(config, frozen)) +
                           12.0 * static_cast<double>(config.layers * config.hidden_size * seq);
  const UnitId unit = plan.units.size() > 1 ? 1 : 0;
  const double peak = peak_tflops(hardware.gpu, plan.param_dtype(unit)) * 1e12;
  return per_token * tokens_per_s / (static_cast<double>(plan.world_size) * peak);
}

}  // namespace shardlens::sim
