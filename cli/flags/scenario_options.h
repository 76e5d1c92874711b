#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "core/plan/step_settings.h"
#include "sim/scenario/scenario.h"

#include "cli/flags/run_options.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace shardlens::cli {

// What a scenario is made of, beside RunOptions' model, plan, step, ranks and hardware.
struct ScenarioOptions {
  std::filesystem::path workload;     // a recorded run; empty: the model's own operators
  std::filesystem::path calibration;  // empty: the hardware's constants alone
  std::string stack;
  bool plan_given = false;  // --plan or --strategy
  // Sets what the flags say of a step, on the settings that a run was recorded with.
  std::function<void(plan::StepSettings&)> set_step;
};

// --workload (besides --model, which is then no longer required), --hardware, --calibration,
// --stack and --world-size. Call it after add_plan_options() or where --model is, and
// add_step_options() after it.
void add_scenario_options(CLI::App& app, RunOptions& run, ScenarioOptions& options);
// To be called when the flags were parsed: what was given and what was not.
void take_given(const CLI::App& app, const RunOptions& run, ScenarioOptions& options);

// The model on a calibration's machine or a spec under its stack, or a recorded run on its own
// machine; `adjust` has the last word on a spec.
// Errors: UsageError for flags that do not go together; InputError as load_model_config,
// load_calibration, load_hardware, under_stack and RecordedRun::open.
[[nodiscard]] sim::Scenario scenario_of(const RunOptions& run,
                                        const ScenarioOptions& options,
                                        const std::function<void(sim::HardwareSpec&)>& adjust = {});

}  // namespace shardlens::cli
