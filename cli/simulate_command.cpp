#include "cli/simulate_command.h"

#include <charconv>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>

#include "core/base/error.h"
#include "sim/calibrate/calibrated_target.h"
#include "sim/calibrate/replay.h"
#include "sim/hardware/stacks.h"
#include "sim/predict/predict.h"

#include "cli/capture_directory.h"
#include "cli/machine_options.h"
#include "cli/output.h"
#include "cli/prepared_run.h"
#include "cli/run_options.h"
#include "cli/simulated_result.h"

namespace shardlens::cli {
namespace {

struct SimulateOptions {
  RunOptions run;
  MachineOptions machine;
  std::filesystem::path workload;  // a recorded run; empty: the model's own workload
  bool other_plan = false;         // --plan or --strategy was given
  std::string ranks = "one";
  std::vector<std::string> slow_ranks;
  std::optional<sim::HostMode> host;  // nullopt: as it was measured; of a spec, kAhead
  bool waits_for_loss = false;
  std::optional<double> operator_us, action_us;
  bool json = false;
};

void check_options(const SimulateOptions& options) {
  const bool measured = !options.machine.calibration.empty() || !options.workload.empty();
  if (options.run.model.empty() && options.workload.empty()) {
    throw UsageError("--model is required, unless --workload names a recorded run");
  }
  if (options.run.hardware.starts_with("ab:") && !measured) {
    throw UsageError(
        "--hardware ab:…: it says how long collectives take, but not how long a GPU computes; use "
        "a spec's name or a spec file, or add --calibration");
  }
  if (options.run.hardware.empty() && !measured) {
    throw UsageError("--hardware is required, unless --calibration says how fast the machine is");
  }
  if (options.ranks != "one" && options.ranks != "all") {
    throw UsageError(fmt::format("--ranks: expected one or all, found '{}'", options.ranks));
  }
  for (const auto& [flag, value] : {std::pair{"--batch", options.run.batch},
                                    {"--seq", options.run.seq},
                                    {"--accumulate", options.run.accumulate},
                                    {"--world-size", options.run.world_size.value_or(1)}}) {
    if (value < 1) {
      throw UsageError(fmt::format("{} {}: expected at least 1", flag, value));
    }
  }
}

// "R:FACTOR" of --slow-rank.
std::vector<double> slowdowns(const SimulateOptions& options, int64_t ranks) {
  if (options.ranks == "one" && options.slow_ranks.empty()) {
    return {};
  }
  std::vector<double> factors(static_cast<size_t>(ranks), 1.0);
  for (const std::string& text : options.slow_ranks) {
    const size_t colon = text.find(':');
    int64_t rank = -1;
    double factor = 0;
    const char* const end = text.data() + text.size();
    const bool reads =
        colon != std::string::npos &&
        std::from_chars(text.data(), text.data() + colon, rank).ptr == text.data() + colon &&
        std::from_chars(text.data() + colon + 1, end, factor).ptr == end;
    if (!reads || rank < 0 || rank >= ranks || !(factor >= 1 && factor <= 1000)) {
      throw UsageError(fmt::format(
          "--slow-rank '{}': expected RANK:FACTOR, such as 3:1.2, with a rank below {} and a "
          "factor from 1 to 1000",
          text, ranks));
    }
    factors[static_cast<size_t>(rank)] = factor;
  }
  return factors;
}

// sgd updates with one moment, or none, where the workload has AdamW.
void apply_optimizer(const RunOptions& run, plan::Workload& workload) {
  if (run.optimizer != Optimizer::kSgd) {
    return;
  }
  for (plan::Operator& op : workload.operators) {
    if (op.phase == plan::Phase::kOptimizer) {
      const Bytes each = op.read / 4;  // AdamW reads parameter, gradient and two moments
      op.name = "aten::_fused_sgd_";
      op.read = (run.momentum > 0 ? 3 : 2) * each;
      op.written = (run.momentum > 0 ? 2 : 1) * each;
    }
  }
}

sim::CalibratedTarget machine_of(const SimulateOptions& options) {
  return machine_of(options.run, options.machine, [&](sim::HardwareSpec& spec) {
    spec.operator_us = options.operator_us.value_or(spec.operator_us);
    spec.action_us = options.action_us.value_or(spec.action_us);
  });
}

SimulatedResult predicted(const SimulateOptions& options,
                          const sim::CalibratedTarget& machine,
                          SimulatedResult out,
                          sim::RunSettings settings) {
  out.machine = machine.target().name;
  out.memory = machine.target().memory;
  out.host = options.host.value_or(machine.host());
  out.accumulate = settings.accumulate;
  out.no_sync = !settings.sync_every_microbatch;
  settings.list_alive = !options.json;
  settings.simulation.host = out.host;
  settings.simulation.waits_for_loss = options.waits_for_loss;
  settings.simulation.keep_times = !options.run.out.empty();
  settings.simulation.rank_slowdown = slowdowns(options, out.plan.world_size);
  out.prediction = sim::predict(out.workload, out.plan, machine.target(), settings);
  return out;
}

SimulatedResult simulate_model(const SimulateOptions& options) {
  const RunOptions& run = options.run;
  const sim::CalibratedTarget machine = machine_of(options);
  const int64_t ranks = run.world_size.value_or(machine.ranks());
  PreparedRun prepared = resolve_run(run, ranks);
  SimulatedResult out;
  out.config = prepared.config.source;
  out.workload = plan::step_workload(prepared.config, prepared.plan, run.batch, run.seq);
  out.plan = std::move(prepared.plan);
  apply_optimizer(run, out.workload);
  sim::RunSettings settings;
  settings.accumulate = run.accumulate;
  settings.sync_every_microbatch = !run.no_sync;
  settings.optimizer_states = run.optimizer == Optimizer::kAdamW ? 2 : run.momentum > 0 ? 1 : 0;
  out = predicted(options, machine, std::move(out), settings);
  if (machine.spec() && machine.calibration() == nullptr) {
    out.mfu = sim::model_flops_utilization(prepared.config, out.plan, *machine.spec(), run.seq,
                                           out.prediction.tokens_per_s);
  }
  return out;
}

SimulatedResult simulate_recorded(const SimulateOptions& options) {
  const RunOptions& run = options.run;
  const sim::Replay replay = sim::Replay::open(options.workload);
  const sim::CalibratedTarget machine(replay.calibration, run.hardware);
  const plan::ResolvedPlan& recorded = replay.observation.plan;
  const int64_t ranks = run.world_size.value_or(recorded.world_size);
  SimulatedResult out;
  out.plan = options.other_plan ? resolve_plan(run, replay.tree(), ranks)
                                : plan::resolve(recorded.plan, replay.tree(), ranks);
  out.workload = replay.workload(out.plan);
  out.config = replay.config ? replay.config->source : "";
  out.recorded = options.workload.string();
  out.recorded_steps = static_cast<int64_t>(replay.observation.steps.size());
  // Its own collectives, whatever those of the prediction are.
  out.baseline = replay.baseline(sim::CalibratedTarget(replay.calibration));
  return predicted(options, machine, std::move(out), replay.settings(machine));
}

ExitCode run(const SimulateOptions& options) {
  check_options(options);
  if (!options.run.out.empty()) {
    check_capture_directory(options.run.out);
  }
  const SimulatedResult result =
      options.workload.empty() ? simulate_model(options) : simulate_recorded(options);
  if (!options.run.out.empty()) {
    write_simulated(result, options.run.out);
    fmt::print(stderr, "simulated {} ranks in {}; next: shardlens analyze {}\n",
               result.plan.world_size, options.run.out.string(), options.run.out.string());
  }
  if (options.json) {
    write_stdout(simulated_json(result));
  } else {
    print_simulated(result);
  }
  return ExitCode::kOk;
}

}  // namespace

Action add_simulate_command(CLI::App& app) {
  const auto options = std::make_shared<SimulateOptions>();
  RunOptions& run_options = options->run;
  add_plan_options(app, run_options);
  CLI::Option* model = app.get_option("--model");
  model->required(false)->option_text("PATH (required without --workload)");
  CLI::Option* workload = app.add_option(
      "--workload", options->workload,
      "a capture, or traces of PyTorch's FSDP: its measured compute, instead of a model's");
  workload->excludes(model);
  CLI::Option* calibration = add_machine_options(app, run_options, options->machine);
  calibration->excludes(workload);
  add_step_options(app, run_options);
  // What a recorded step is, is recorded.
  for (const char* flag : {"--batch", "--seq", "--accumulate", "--no-sync", "--optimizer",
                           "--momentum", "--precision"}) {
    app.get_option(flag)->excludes(workload);
  }
  app.add_option("--ranks", options->ranks, "all: simulate each rank [one: they are alike]")
      ->option_text("one|all [one]");
  app.add_option("--slow-rank", options->slow_ranks,
                 "R:FACTOR: rank R computes FACTOR times as long; may be repeated")
      ->option_text("R:FACTOR");
  static const std::map<std::string, sim::HostMode> kHosts{{"ahead", sim::HostMode::kAhead},
                                                           {"compute", sim::HostMode::kCompute}};
  app.add_option(
         "--host", options->host,
         "ahead: issues and goes on, as on CUDA; compute: does the work itself, as on a CPU")
      ->transform(CLI::CheckedTransformer(kHosts))
      ->option_text("ahead|compute [ahead; of a calibration, as it was measured]");
  app.add_option("--operator-us", options->operator_us,
                 "the host's cost of an operator [the spec's]")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--action-us", options->action_us,
                 "the host's cost of an action of the schedule [the spec's]")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--waits-for-loss", options->waits_for_loss,
               "the training loop reads the loss before it calls backward");
  // What was measured is not said again.
  for (const char* flag : {"--stack", "--operator-us", "--action-us"}) {
    app.get_option(flag)->excludes(workload)->excludes(calibration);
  }
  app.add_option("--out", run_options.out, "write a capture directory that analyze reads");
  app.add_flag("--json", options->json, "machine-readable output");
  const CLI::Option* plan = app.get_option("--plan");
  const CLI::Option* strategy = app.get_option("--strategy");
  return [options, plan, strategy] {
    options->other_plan = plan->count() + strategy->count() > 0;
    return run(*options);
  };
}

}  // namespace shardlens::cli
