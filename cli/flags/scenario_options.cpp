#include "cli/flags/scenario_options.h"

#include <charconv>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/base/standard_output.h"
#include "core/json/json_reader.h"
#include "core/model/model_file.h"
#include "core/plan/plan.h"
#include "sim/cost/transport.h"
#include "sim/hardware/power_limit.h"
#include "sim/hardware/stacks.h"
#include "sim/scenario/model_of_run.h"

#include "cli/flags/prepared_run.h"
#include "cli/flags/software_options.h"

namespace shardlens::cli {
namespace {

void check_machine(const RunOptions& run, const ScenarioOptions& options) {
  const bool measured = !options.calibration.empty() || !options.workload.empty();
  if (run.model.empty() && options.workload.empty()) {
    throw UsageError("--model is required, unless a recorded run is given with --workload");
  }
  if (run.hardware.starts_with("ab:") && !measured) {
    throw UsageError(
        "--hardware ab:…: it gives durations of collectives, but not of compute; use a spec's name "
        "or a spec file, or add --calibration");
  }
  if (run.hardware.empty() && !measured) {
    throw UsageError("--hardware is required, unless a machine is given with --calibration");
  }
  const int64_t ranks = run.world_size.value_or(1);
  if (ranks < 1 || ranks > plan::kMostRanks) {
    throw UsageError(fmt::format("--world-size {}: expected 1 to {}", ranks, plan::kMostRanks));
  }
}

// The program that runs the model: a model file's was exported from PyTorch.
plan::Program program_of(std::string_view stack, const plan::ModelConfig& config) {
  return sim::program_of_stack(stack).value_or(config.file != nullptr ? plan::Program::kTransformers
                                                                      : plan::Program::kEngine);
}

// Errors: UsageError for an unknown name, or a machine for which no gain was measured.
sim::Transport transport_of(const ScenarioOptions& options, const sim::HardwareSpec& spec) {
  if (options.transport.empty()) {
    return sim::Transport::kRing;
  }
  const auto transport = sim::transport_named(options.transport);
  if (!transport) {
    const std::vector<std::string> names{"ring", "symmetric", "copy_engine"};
    throw UsageError(fmt::format("--transport {}: expected {}{}", options.transport,
                                 plan::quoted_list(names),
                                 plan::suggestion(options.transport, names)));
  }
  if (const std::string why = sim::refusal_of(*transport, spec); !why.empty()) {
    throw UsageError("--transport " + why);
  }
  return *transport;
}

// The least and the most that --power-limit says.
std::pair<double, double> limits_of(std::string_view given) {
  const auto number = [given](std::string_view part) {
    double out = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), out);
    if (error != std::errc() || end != part.data() + part.size()) {
      throw UsageError(
          fmt::format("--power-limit {}: expected watts (700), or the least and the "
                      "most of a limit that is not known (400:700)",
                      given));
    }
    return out;
  };
  const size_t colon = given.find(':');
  const double least = number(given.substr(0, colon));
  return {least, colon == std::string_view::npos ? least : number(given.substr(colon + 1))};
}

std::shared_ptr<const sim::TargetMachine> machine_of(
    const RunOptions& run,
    const ScenarioOptions& options,
    const std::string& stack,
    plan::Program program,
    const std::function<void(sim::HardwareSpec&)>& adjust) {
  if (!options.calibration.empty()) {
    return std::make_shared<const sim::TargetMachine>(
        sim::load_calibration(options.calibration.string()), run.hardware);
  }
  sim::HardwareSpec spec =
      sim::hardware_under(run.hardware, options.bare ? sim::kBareStack : std::string_view(stack),
                          !plan::is_engine(program));
  if (options.power_limit) {
    const auto [least, most] = limits_of(*options.power_limit);
    spec = sim::with_power_limit(std::move(spec), least, most);
  }
  spec.fabric.transport = transport_of(options, spec);
  if (adjust) {
    adjust(spec);
  }
  return std::make_shared<const sim::TargetMachine>(std::move(spec));
}

plan::OptimizerImpl optimizer_impl(const ScenarioOptions& options, plan::Program program) {
  for (const auto impl : {plan::OptimizerImpl::kFused, plan::OptimizerImpl::kForeach}) {
    if (options.optimizer_impl == plan::name_of(impl)) {
      return impl;
    }
  }
  if (!options.optimizer_impl.empty()) {
    throw UsageError(
        fmt::format("--optimizer-impl {}: expected fused or foreach", options.optimizer_impl));
  }
  return sim::optimizer_by_default(program);
}

// The model from which a recorded run is predicted on the mesh that is asked for: that of --model,
// or the run's own. nullopt: its operators are enough.
std::optional<plan::ModelConfig> model_for_mesh(const RunOptions& run,
                                                const ScenarioOptions& options,
                                                const sim::RecordedRun& recorded) {
  const plan::Plan asked =
      changed_plan(run, options.strategy_given, recorded.observation().plan.plan, recorded.tree());
  const bool needed = sim::divides_otherwise(recorded, asked.mesh);
  if (run.model.empty()) {
    return needed ? sim::own_model(recorded) : std::nullopt;
  }
  if (!needed) {
    throw UsageError(
        "--model with --workload is for another tensor, context or expert than the run's; give "
        "them with --mesh or --plan, or leave --model out");
  }
  if (!options.other_workload.empty()) {
    throw UsageError("--model with --workload: expected one recorded run");
  }
  return plan::load_model_config(run.model);
}

}  // namespace

std::string stack_name(const RunOptions& run,
                       const ScenarioOptions& options,
                       const plan::ModelConfig& config) {
  return options.calibration.empty() ? sim::stack_or_default(options.stack, run.hardware, config)
                                     : options.stack;
}

void add_scenario_options(CLI::App& app, RunOptions& run, ScenarioOptions& options) {
  CLI::Option* model = app.get_option("--model");
  model->required(false)->option_text("PATH (required without --workload)");
  CLI::Option* workload =
      app.add_option(
             "--workload", options.workloads,
             "simulate the operators of a capture, or of traces of PyTorch's FSDP or DDP, instead "
             "of a model's; step settings without a flag are those of the run. Given twice: two "
             "recordings of one program with sequences of different length, for another --seq")
          ->option_text("PATH")
          ->allow_extra_args(false);
  app.add_option(
         "--hardware", run.hardware,
         fmt::format("{}, several such nodes (2x8xH100), or a spec file; with --calibration "
                     "also ab:MICROSECONDS:GBPS",
                     fmt::join(sim::hardware_names(), ", ")))
      ->option_text("SPEC (required without --calibration)");
  CLI::Option* calibration =
      app.add_option("--calibration", options.calibration,
                     "file written by `shardlens calibrate`: takes precedence over --hardware")
          ->excludes(workload);
  app.add_option(
         "--stack", options.stack,
         "constants fitted to published runs of a software stack; \"bare\": none; "
         "\"transformers\", \"transformers-flash-2\" (FlashAttention-2, for packed samples), "
         "\"torchtitan\" (0.2.2), \"torchtitan-2025\" (FlashAttention-2 before "
         "Blackwell), \"torchtitan-2024\" (its norms are several "
         "kernels), \"torchtitan-0.3\" (one product for queries, keys and values, head and loss "
         "in 8 parts, a CUDA graph), \"simple-fsdp\" and \"graph-trainer\" (torchtitan's "
         "SimpleFSDP with aot_eager and GraphTrainer; with --compile model, inductor): a "
         "config.json's model runs the operators of that program, with "
         "the constants of PyTorch's on that GPU (shardlens docs simulator_costs) [on A100 "
         "and H100 the stack fitted there, on others torchtitan, or transformers where torchtitan "
         "does not have the model]")
      ->excludes(workload)
      ->excludes(calibration);
  app.add_option("--power-limit", options.power_limit,
                 "limit of each GPU's power, below its vendor's: products and attention become "
                 "slower (shardlens docs simulator_costs). LEAST:MOST: it is not known, and "
                 "somewhere between these")
      ->option_text("WATTS|LEAST:MOST [the vendor's]")
      ->excludes(workload)
      ->excludes(calibration);
  app.add_option("--transport", options.transport,
                 "how collectives move data within a node: ring; symmetric, buffers in symmetric "
                 "memory; copy_engine, all-gathers without SMs (shardlens docs simulator_costs)")
      ->option_text("ring|symmetric|copy_engine [ring]")
      ->excludes(workload)
      ->excludes(calibration);
  app.add_option("--optimizer-impl", options.optimizer_impl,
                 "fused or foreach, as the keywords of torch.optim [foreach with --stack "
                 "transformers and model.json, otherwise fused]")
      ->option_text("IMPL")
      ->excludes(workload);
  add_software_options(app, options.software);
  app.add_option("--expert-skew", run.step.expert_skew,
                 "routing of experts: the share of the i-th most chosen one is proportional to "
                 "i^-SKEW; 0: balanced")
      ->option_text("SKEW [0]")
      ->excludes(workload);
  app.add_option("--world-size", run.world_size,
                 "number of ranks [all GPUs of the spec, or the ranks of the recorded run]");
}

void take_given(const CLI::App& app, const RunOptions& run, ScenarioOptions& options) {
  const auto given = [&app](const char* flag) {
    const CLI::Option* option = app.get_option_no_throw(flag);
    return option != nullptr && option->count() > 0;
  };
  options.strategy_given = given("--strategy");
  if (given("--cuda-graphs") || given("--no-cuda-graphs")) {
    options.cuda_graphs = given("--cuda-graphs");
  }
  if (options.workloads.size() > 2) {
    throw UsageError(
        fmt::format("--workload: expected a recorded run, or two that differ in the length of "
                    "their sequences; found {}",
                    options.workloads.size()));
  }
  options.workload = options.workloads.empty() ? "" : options.workloads.front();
  options.other_workload = options.workloads.size() < 2 ? "" : options.workloads.back();
  if (!options.workload.empty() && given("--precision")) {
    throw UsageError(
        "--precision cannot be used with --workload, whose run has its own precision; use a plan "
        "file with mixed_precision");
  }
  options.set_step = [step = run.step, segments = options.software.expandable_segments,
                      batch = given("--batch"), seq = given("--seq"),
                      accumulate = given("--accumulate"), no_sync = given("--no-sync"),
                      optimizer = given("--optimizer"),
                      momentum = given("--momentum")](plan::StepSettings& out) {
    out.batch = batch ? step.batch : out.batch;
    out.seq = seq ? step.seq : out.seq;
    out.accumulate = accumulate ? step.accumulate : out.accumulate;
    out.sync_every_microbatch = no_sync ? step.sync_every_microbatch : out.sync_every_microbatch;
    out.optimizer = optimizer ? step.optimizer : out.optimizer;
    out.momentum = momentum ? step.momentum : out.momentum;
    if (segments) {
      out.software.expandable_segments = segments;
    }
  };
}

void write_recorder_notes(const sim::RecordedRun& run) {
  for (const trace::Diagnostic& each : run.observation().diagnostics) {
    if (each.message.starts_with("shardlens.record: ") ||
        each.message.starts_with("recorded under DDP: ")) {
      write_stderr("shardlens: note: {}\n", each.message);
    }
  }
}

sim::Scenario scenario_of(const RunOptions& run,
                          const ScenarioOptions& options,
                          const std::function<void(sim::HardwareSpec&)>& adjust) {
  check_machine(run, options);
  if (options.workload.empty()) {
    check_sizes(run.step);
    sim::Scenario out;
    const plan::ModelConfig config = plan::load_model_config(run.model);
    const std::string stack = stack_name(run, options, config);
    const plan::Program program = program_of(stack, config);
    out.machine = machine_of(run, options, stack, program, adjust);
    out.world_size = run.world_size.value_or(out.machine->ranks());
    out.model = std::make_shared<const sim::ScenarioModel>(config);
    out.plan = plan_of(run, out.model->tree());
    out.step = plan::default_step(config, run.step);
    options.set_step(out.step);
    out.step.program = program;
    if (!options.stack.empty() && plan::is_torchtitan(program) && run.plan.empty() &&
        !out.plan.mixed_precision.param_dtype) {
      write_stderr(
          "shardlens: note: this step is in fp32; torchtitan trains with --precision bf16 by "
          "default\n");
    }
    out.step.software = options.software;
    out.step.software.cuda_graphs =
        options.cuda_graphs.value_or(plan::software_by_default(out.step.program).cuda_graphs);
    // Without --stack it is fused, whichever program the GPU has by default.
    out.step.optimizer_impl = optimizer_impl(options, program_of(options.stack, config));
    return out;
  }
  const auto recorded = options.other_workload.empty()
                            ? sim::RecordedRun::open(std::span(&options.workload, 1))
                            : sim::RecordedRun::open_two(options.workload, options.other_workload);
  write_recorder_notes(*recorded);
  sim::Scenario out = sim::own_scenario(recorded);
  if (const auto model = model_for_mesh(run, options, *recorded)) {
    out = sim::scenario_of_model(*recorded, *model, run.hardware);
  } else if (!run.hardware.empty()) {
    out.machine =
        std::make_shared<const sim::TargetMachine>(*out.machine->calibration(), run.hardware);
  }
  options.set_step(out.step);
  check_sizes(out.step);
  if (run.world_size && *run.world_size != out.world_size && out.plan.mesh.replicate == 1) {
    out.plan.mesh.shard.reset();  // of all ranks
  }
  out.world_size = run.world_size.value_or(out.world_size);
  out.plan = changed_plan(run, options.strategy_given, std::move(out.plan), out.model->tree());
  if (run.plan.empty()) {
    out.plan = sim::on_mesh(out.plan, out.plan.mesh);
  }
  return out;
}

}  // namespace shardlens::cli
