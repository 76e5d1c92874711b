#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/model/model_config.h"
#include "core/tree/module_tree.h"
#include "core/workload/step_settings.h"
#include "sim/scenario/scenario.h"

#include "cli/flags/run_options.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace shardlens::cli {

// The parts of a scenario that are not in RunOptions (model, plan, step, ranks, hardware).
struct ScenarioOptions {
  std::vector<std::filesystem::path> workloads;  // --workload
  std::filesystem::path workload;                // a recorded run; empty: the model's own operators
  // The same program with sequences of another length; empty: none.
  std::filesystem::path other_workload;
  std::filesystem::path calibration;       // empty: only the hardware's constants
  std::string stack;                       // --stack
  bool bare = false;                       // without the constants of the stack
  std::optional<std::string> power_limit;  // --power-limit
  std::string transport;                   // --transport; empty: rings
  plan::Software software;                 // --compile, --matmul-dtype, --loss-chunks, segments
  std::optional<bool> cuda_graphs;  // --cuda-graphs, --no-cuda-graphs; nullopt: as the program
  std::string optimizer_impl;       // "fused", "foreach"; empty: that of the program
  bool strategy_given = false;      // --strategy
  // Applies the step flags that were given to the settings of a recorded run.
  std::function<void(plan::StepSettings&)> set_step;
};

// Adds --workload (and makes --model optional), --hardware, --calibration, --stack and
// --world-size. Call it after add_plan_options() (or after adding --model) and before
// add_step_options().
void add_scenario_options(CLI::App& app, RunOptions& run, ScenarioOptions& options);
// To be called after the flags were parsed: records which flags were given.
void take_given(const CLI::App& app, const RunOptions& run, ScenarioOptions& options);

// The value of --stack that scenario_of() takes for a model: see sim::stack_or_default(). "" on a
// calibrated machine.
[[nodiscard]] std::string stack_name(const RunOptions& run,
                                     const ScenarioOptions& options,
                                     const plan::ModelConfig& config);

// The scenario of the flags: a model on a calibrated machine or on a spec with its stack, or a
// recorded run on its own machine. `adjust` may change the spec before it is used.
// Errors: UsageError for flags that cannot be combined; InputError as load_model_config,
// load_calibration, load_hardware, under_stack and RecordedRun::open.
[[nodiscard]] sim::Scenario scenario_of(const RunOptions& run,
                                        const ScenarioOptions& options,
                                        const std::function<void(sim::HardwareSpec&)>& adjust = {});

// Writes what shardlens.record noted about a recorded run to stderr: why it has no plan, …; and
// which activation checkpoints every prediction of a run of DDP has.
void write_recorder_notes(const sim::RecordedRun& run);

}  // namespace shardlens::cli
