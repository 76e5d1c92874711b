#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <QString>

#include "core/plan/module_tree.h"
#include "core/plan/plan.h"
#include "core/plan/step_settings.h"
#include "sim/scenario/scenario.h"

namespace shardlens::gui {

// What is edited: a plan, what a step is, and on which machine.
struct PlanState {
  plan::Plan plan;
  QString machine;  // machine_choices() lists them
  int64_t world_size = 1;
  plan::StepSettings step;
  friend bool operator==(const PlanState&, const PlanState&) = default;
};

// What is planned for: a recorded run, a model, or both.
struct PlanSubject {
  std::shared_ptr<const sim::RecordedRun> recorded;     // nullptr: nothing was learnt from a run
  std::shared_ptr<const sim::ScenarioModel> of_run;     // its operators
  std::shared_ptr<const sim::ScenarioModel> of_config;  // nullptr: the model is not known

  [[nodiscard]] static PlanSubject of(std::shared_ptr<const sim::RecordedRun> run);
  [[nodiscard]] static PlanSubject of(const plan::ModelConfig& config);
  [[nodiscard]] bool empty() const { return of_run == nullptr && of_config == nullptr; }
  [[nodiscard]] const plan::ModuleTree& tree() const;
};

// Machines by name.
//   "run"           the machine that the run was recorded on
//   "run+8xH100"    the same, and a spec for what the run does not tell
//   "8xH100"        a spec alone, by name or as a file
// Of a run on a CPU the second is not offered: its compute says nothing of a GPU's links.
inline constexpr const char* kMachineOfRun = "run";
struct MachineChoice {
  QString name, label, help;
};
[[nodiscard]] std::vector<MachineChoice> machine_choices(const PlanSubject& subject);
// "this run", "8xH100": what a person reads.
[[nodiscard]] QString machineText(const QString& machine);

// Any thread. Errors: InputError for a machine that is not there, or that is missing; UsageError.
[[nodiscard]] sim::Scenario scenario_of(const PlanSubject& subject, const PlanState& state);

// What a recorded run's own state is. The subject has one.
[[nodiscard]] PlanState own_state(const PlanSubject& subject);

}  // namespace shardlens::gui
