#include "sim/scenario/model_of_run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"

namespace shardlens::sim {
namespace {

// Errors: InputError for a model whose parameters are not those that the run trained.
void require_same_parameters(const RecordedRun& run, const plan::ModelConfig& config) {
  const std::string& source = run.observation().source;
  const auto refuse = [&](const std::string& why) {
    throw InputError(config.source,
                     fmt::format("is not the model of {}: {}; expected the config.json or "
                                 "model.json of the model that was recorded",
                                 source, why));
  };
  std::map<std::string, int64_t> in_run;
  for (const plan::Parameter& each : run.tree().parameters) {
    in_run.emplace(each.fqn, each.numel);
  }
  const plan::ModuleTree tree = plan::module_tree(config);
  for (const plan::Parameter& each : tree.parameters) {
    const auto found = in_run.find(each.fqn);
    if (found == in_run.end()) {
      refuse(fmt::format("the run has no parameter '{}'", each.fqn));
    }
    if (found->second != each.numel) {
      refuse(fmt::format("'{}' has {} elements, and {} in the run", each.fqn, each.numel,
                         found->second));
    }
    in_run.erase(found);
  }
  if (!in_run.empty()) {
    refuse(fmt::format("it has no parameter '{}'", in_run.begin()->first));
  }
}

double forward_products(const plan::Workload& workload) {
  double out = 0;
  for (const plan::Operator& op : workload.operators) {
    const bool forward = op.phase == plan::Phase::kForward || op.phase == plan::Phase::kLoss;
    out += forward && op.kind == plan::OperatorKind::kGemm ? static_cast<double>(op.flops) : 0;
  }
  return out;
}

// Errors: InputError for a program that multiplies more or less than the model does.
void require_same_products(const RecordedRun& run,
                           const plan::ModelConfig& config,
                           const plan::Workload& model) {
  constexpr double kTolerance = 0.05;
  const double recorded = forward_products(run.observation().workload);
  const double expected = forward_products(model);
  if (expected <= 0 || std::abs(recorded / expected - 1) > kTolerance) {
    throw InputError(
        config.source,
        fmt::format("forward of {} has products of {:.4g} GFLOP, the model's under the run's plan "
                    "{:.4g}: the program does something else than the model; expected a run of the "
                    "whole model, in training",
                    run.observation().source, recorded * 1e-9, expected * 1e-9));
  }
}

void require_one_program(const RecordedRun& run) {
  const Observation& of = run.observation();
  const auto refuse = [&of](const std::string& why) {
    throw InputError(of.source, why +
                                    ", so it can only be simulated with its own context, tensor "
                                    "and expert");
  };
  // Of a ring each rank sends everything to another one, which is no unequal work.
  if (!of.of_ranks.empty() && of.plan.plan.mesh.context == 1) {
    refuse("the ranks have unequal numbers of rows");
  }
  if (of.captured) {
    refuse("its steps are replayed as CUDA graphs");
  }
  if (of.one_pass) {
    refuse("no recorded step is like the plan's");
  }
}

// Whether ranks of `tensor` divide the sequence is not in a recorder's plan, but in what they
// communicate.
bool divides_rows(const plan::Workload& recorded) {
  return std::ranges::any_of(recorded.communications, [](const plan::Communication& each) {
    return each.kind == CollectiveKind::kReduceScatter;
  });
}

// Both priced on the machine; see [Note: Operators of other degrees].
std::shared_ptr<const ModelRatios> ratios_of(const RecordedRun& run,
                                             const plan::ModelConfig& config,
                                             const Scenario& own) {
  const plan::ResolvedPlan plan = own.model->resolve(own.plan, own.world_size);
  const plan::Workload model = own.model->workload(plan, own.step);
  require_same_products(run, config, model);
  return std::make_shared<const ModelRatios>(run.observation().workload, run.observation().plan,
                                             model, plan, *own.machine->measured_costs());
}

std::string degrees(const plan::MeshSizes& mesh) {
  return mesh.context > 1 ? fmt::format("tensor {}, context {}", mesh.tensor, mesh.context)
                          : fmt::format("tensor {}", mesh.tensor);
}

}  // namespace

bool divides_otherwise(const RecordedRun& run, const plan::MeshSizes& mesh) {
  const plan::MeshSizes& own = run.observation().plan.plan.mesh;
  return mesh.context != own.context || mesh.tensor != own.tensor || mesh.expert != own.expert;
}

std::optional<plan::ModelConfig> own_model(const RecordedRun& run) {
  if (run.config() != nullptr) {
    return *run.config();
  }
  std::error_code error;
  const auto written = std::filesystem::path(run.observation().source) / "config.json";
  return std::filesystem::is_regular_file(written, error)
             ? std::optional(plan::load_model_config(written))
             : std::nullopt;
}

plan::Plan on_mesh(plan::Plan plan, const plan::MeshSizes& mesh) {
  plan.mesh = mesh;
  if (mesh.tensor == 1) {
    plan.tensor_parallel.clear();
    plan.sequence_parallel = plan::Plan().sequence_parallel;
    plan.loss_parallel = plan::Plan().loss_parallel;
  }
  return plan;
}

Scenario scenario_of_model(const RecordedRun& run,
                           const plan::ModelConfig& config,
                           const std::string& hardware) {
  require_one_program(run);
  require_same_parameters(run, config);
  const Observation& of = run.observation();
  Scenario out;
  out.plan = of.plan.plan;
  if (of.pytorch && out.plan.mesh.tensor > 1) {
    out.plan.sequence_parallel = divides_rows(of.workload);
  }
  out.world_size = of.plan.world_size;
  out.step = of.settings;
  if (of.pytorch && out.step.seq) {
    *out.step.seq *= out.plan.mesh.context;  // a program sees its rank's part only
  }
  if (of.pytorch && plan::is_engine(out.step.program)) {
    out.step.program = plan::Program::kTransformers;
  }
  out.machine = hardware.empty() ? run.machine()
                                 : std::make_shared<const TargetMachine>(
                                       *run.machine()->calibration(), hardware);
  out.model = std::make_shared<const ScenarioModel>(config, of.pytorch);
  out.machine = out.machine->with_ratios(
      ratios_of(run, config, out), fmt::format("{}, its operators of {} scaled by the model's",
                                               out.machine->target().name, degrees(out.plan.mesh)));
  Baseline baseline = run.baseline();
  baseline.simulated = evaluate(out).step.duration;
  out.model = std::make_shared<const ScenarioModel>(config, of.pytorch, std::move(baseline));
  return out;
}

}  // namespace shardlens::sim
