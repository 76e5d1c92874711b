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
#include "core/base/standard_output.h"
#include "core/plan/mesh_sizes.h"
#include "sim/scenario/scenario.h"
#include "sim/scenario/uncertainty.h"

#include "cli/capture/capture_directory.h"
#include "cli/command/subcommand.h"
#include "cli/flags/outputs.h"
#include "cli/flags/run_options.h"
#include "cli/flags/scenario_options.h"
#include "cli/flags/size_option.h"
#include "cli/results/largest_steps.h"
#include "cli/results/output.h"
#include "cli/results/simulated_result.h"
#include "cli/results/stack_used.h"

namespace shardlens::cli {
namespace {

constexpr int64_t kMostWritten = 10'000'000;  // operators; about 200 MB of traces

struct SimulateOptions {
  RunOptions run;
  ScenarioOptions scenario;
  std::string ranks = "one";
  std::vector<std::string> slow_ranks;
  std::optional<sim::HostMode> host;  // nullopt: the calibration's; kAhead for a spec
  bool waits_for_loss = false;
  std::optional<double> operator_us, action_us, unit_us;
  bool fits = false;
  std::optional<int64_t> memory_limit;  // of --fits; nullopt: the machine's
  Outputs outputs;
  bool json = false;
};

// The factor of each rank, from "R:FACTOR" of --slow-rank.
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

// A second is more than any host needs for one operator; durations of 64 bits hold any number of
// them.
void check_host_time(const char* flag, const std::optional<double>& microseconds) {
  if (microseconds && !(*microseconds >= 0 && *microseconds <= 1e6)) {
    throw UsageError(
        fmt::format("{} {}: expected microseconds from 0 to 1000000", flag, *microseconds));
  }
}

sim::Scenario described(const SimulateOptions& options) {
  check_host_time("--operator-us", options.operator_us);
  check_host_time("--action-us", options.action_us);
  check_host_time("--unit-us", options.unit_us);
  sim::Scenario out = scenario_of(options.run, options.scenario, [&](sim::HardwareSpec& spec) {
    // A host that issues operators faster runs the rest of its program as much faster.
    const double faster =
        options.operator_us && spec.operator_us > 0 ? *options.operator_us / spec.operator_us : 1;
    spec.software.unit_us = options.unit_us.value_or(spec.software.unit_us * faster);
    spec.operator_us = options.operator_us.value_or(spec.operator_us);
    spec.action_us = options.action_us.value_or(spec.action_us);
  });
  out.host = options.host;
  out.waits_for_loss = options.waits_for_loss;
  out.rank_slowdown = slowdowns(options, out.world_size);
  return out;
}

void require_traces_size(const sim::Scenario& scenario) {
  const plan::ResolvedPlan plan = scenario.model->resolve(scenario.plan, scenario.world_size);
  const auto operators =
      static_cast<int64_t>(scenario.model->workload(plan, scenario.step).operators.size());
  if (scenario.step.accumulate * operators > kMostWritten / scenario.world_size) {
    throw UsageError(
        fmt::format("--out: traces of {} ranks with {} operators in each of {} microbatches, "
                    "expected at most {} in all; use fewer ranks or microbatches",
                    scenario.world_size, operators, scenario.step.accumulate, kMostWritten));
  }
}

ExitCode run(const SimulateOptions& options) {
  if (options.ranks != "one" && options.ranks != "all") {
    throw UsageError(fmt::format("--ranks: expected one or all, found '{}'", options.ranks));
  }
  if (options.memory_limit && *options.memory_limit < 1) {
    throw UsageError(fmt::format("--memory-limit {}: expected at least 1", *options.memory_limit));
  }
  const std::filesystem::path out = options.outputs.emptied_directory("--out");
  if (!out.empty()) {
    check_capture_directory(out, options.run.force);
  }
  const sim::Scenario scenario = described(options);
  if (options.fits) {
    const LargestSteps largest = largest_steps(scenario, options.memory_limit.value_or(0));
    if (options.json) {
      write_data(largest_steps_json(largest));
    } else {
      print_largest_steps(largest);
    }
    return ExitCode::kOk;
  }
  if (!out.empty()) {
    require_traces_size(scenario);
  }
  SimulatedResult result;
  if (const plan::ModelConfig* config = scenario.model->config()) {
    result.config = config->source;
  }
  result.recorded = options.scenario.workload.string();
  const bool divided = !plan::divided_axis(scenario.plan.mesh).first.empty();
  result.prediction = sim::evaluate(
      scenario,
      {.timeline = !out.empty(), .communication = options.json || divided, .alive = true});
  const auto& recorded = scenario.model->run();
  if (recorded != nullptr && scenario.machine == recorded->machine()) {
    const sim::Uncertainty uncertainty(recorded);
    uncertainty.add_to(scenario, result.prediction);
    result.few_steps = uncertainty.steps() < sim::Uncertainty::kEnoughSteps;
  } else {
    sim::Uncertainty(scenario.machine).add_to(scenario, result.prediction);
  }
  result.on_spec = options.scenario.workload.empty() && options.scenario.calibration.empty();
  result.stack = stack_used(options.run, options.scenario, scenario);
  if (result.stack) {
    SimulateOptions bare = options;
    bare.scenario.bare = true;
    result.bare = sim::evaluate(described(bare));
  }
  if (!out.empty()) {
    write_simulated(result, out, options.run.force);
    write_stderr("simulated {} ranks in {}; next: shardlens analyze {}\n", scenario.world_size,
                 out.string(), out.string());
  }
  if (options.json) {
    write_data(simulated_json(result));
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
  add_scenario_options(app, run_options, options->scenario);
  add_step_options(app, run_options);
  app.add_option("--ranks", options->ranks,
                 "one: simulate a single rank, since all are identical; all: simulate each rank")
      ->option_text("one|all [one]");
  app.add_option("--slow-rank", options->slow_ranks,
                 "R:FACTOR: compute takes FACTOR times as long on rank R; may be repeated")
      ->option_text("R:FACTOR")
      ->allow_extra_args(false);
  static const std::map<std::string, sim::HostMode> kHosts{{"ahead", sim::HostMode::kAhead},
                                                           {"compute", sim::HostMode::kCompute}};
  app.add_option(
         "--host", options->host,
         "ahead: the host issues work and runs ahead, as on CUDA; compute: the host computes "
         "itself, as on a CPU")
      ->transform(CLI::CheckedTransformer(kHosts))
      ->option_text("ahead|compute [the calibration's; ahead for a spec]");
  app.add_option("--operator-us", options->operator_us,
                 "host time to issue an operator, in microseconds [the spec's]");
  app.add_option("--action-us", options->action_us,
                 "host time of an action of the schedule, in microseconds [the spec's]");
  app.add_option("--unit-us", options->unit_us,
                 "host time of a unit's forward and backward without its actions, in microseconds "
                 "[the spec's for programs of PyTorch, in proportion to --operator-us; otherwise "
                 "0]");
  app.add_flag("--waits-for-loss", options->waits_for_loss,
               "the training loop reads the loss before it calls backward");
  // A calibration has measured values for these.
  for (const char* flag : {"--operator-us", "--action-us", "--unit-us"}) {
    app.get_option(flag)->excludes("--workload")->excludes("--calibration");
  }
  CLI::Option* fits = app.add_flag("--fits", options->fits,
                                   "find the largest batch and the longest sequence that fit");
  app.add_option(
         "--memory-limit", options->memory_limit,
         "with --fits: limit on the memory that the allocator reserves per GPU, in addition "
         "to the machine's, such as 80GiB")
      ->transform(CLI::Validator(size_to_bytes, ""))
      ->option_text("SIZE [the machine's]")
      ->needs(fits);
  options->outputs
      .add(app, "--out", "write the step as a capture directory for analyze",
           Outputs::Force::kNever)
      ->excludes(fits);
  app.add_flag("--force", run_options.force,
               "replace files of a capture in --out that no mark says this program made");
  app.add_flag("--json", options->json, "machine-readable output");
  return [options, &app] {
    take_given(app, options->run, options->scenario);
    return run(*options);
  };
}

}  // namespace shardlens::cli
