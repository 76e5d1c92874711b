#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <QString>

#include "core/model/model_config.h"
#include "core/plan/plan.h"
#include "core/tree/module_tree.h"
#include "core/workload/step_settings.h"
#include "sim/hardware/hardware_spec.h"
#include "sim/scenario/scenario.h"
#include "sim/scenario/uncertainty.h"

namespace shardlens::gui {

// The edited state: a plan, the step settings and the machine.
struct PlanState {
  plan::Plan plan;
  QString machine;  // machine_choices() lists them
  int64_t world_size = 1;
  plan::StepSettings step;
  sim::Transport transport = sim::Transport::kRing;
  // Of a machine that is only a specification: the stack, as --stack has it, and the limit of each
  // GPU's power; nullopt: its vendor's.
  QString stack = {};
  std::optional<double> power_watts = std::nullopt;
  friend bool operator==(const PlanState&, const PlanState&) = default;
};

// The program that the plan is for: a recorded run, a model, or both.
struct PlanSubject {
  std::shared_ptr<const sim::RecordedRun> recorded;     // nullptr: no run was observed
  std::shared_ptr<const sim::ScenarioModel> of_run;     // the run's operators
  std::shared_ptr<const sim::ScenarioModel> of_config;  // nullptr: the model is unknown
  std::shared_ptr<const sim::Uncertainty> uncertainty;  // of predictions for the run; nullptr: none

  [[nodiscard]] static PlanSubject of(std::shared_ptr<const sim::RecordedRun> run);
  [[nodiscard]] static PlanSubject of(const plan::ModelConfig& config);
  [[nodiscard]] bool empty() const { return of_run == nullptr && of_config == nullptr; }
  [[nodiscard]] const plan::ModuleTree& tree() const;
};

// Machines by name.
//   "run"           the machine that the run was recorded on
//   "run+8xH100"    the same, and a spec for what cannot be measured from the run
//   "8xH100"        only a spec, by name or file
// The second is not offered for a run on a CPU, which cannot be combined with a GPU's links. A file
// is only offered while it is the machine of a state (`chosen`).
inline constexpr const char* kMachineOfRun = "run";
struct MachineChoice {
  QString name, label, help;
  friend bool operator==(const MachineChoice&, const MachineChoice&) = default;
};
[[nodiscard]] std::vector<MachineChoice> machine_choices(const PlanSubject& subject,
                                                         const QString& chosen = {});
// Its specification; nullopt: it is only measured. Errors: as sim::load_hardware().
[[nodiscard]] std::optional<sim::HardwareSpec> spec_of(const QString& machine);
// The machine as shown to the user: "this run", "8xH100", the name of a file.
[[nodiscard]] QString machineText(const QString& machine);

// Any thread. Errors: InputError if no machine is chosen or it is not available; UsageError.
[[nodiscard]] sim::Scenario scenario_of(const PlanSubject& subject, const PlanState& state);

// The recorded run's own state. Requires subject.recorded.
[[nodiscard]] PlanState own_state(const PlanSubject& subject);

}  // namespace shardlens::gui
