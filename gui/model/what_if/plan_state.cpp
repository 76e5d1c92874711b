#include "gui/model/what_if/plan_state.h"

#include <algorithm>
#include <string>
#include <utility>

#include <QFileInfo>
#include <QObject>

#include "core/base/error.h"
#include "sim/cost/transport.h"
#include "sim/hardware/hardware_spec.h"
#include "sim/hardware/power_limit.h"
#include "sim/hardware/stacks.h"

namespace shardlens::gui {
namespace {

const QString kRunAnd = QStringLiteral("run+");

}  // namespace

PlanSubject PlanSubject::of(std::shared_ptr<const sim::RecordedRun> run) {
  PlanSubject out;
  if (run->config() != nullptr) {
    out.of_config = std::make_shared<const sim::ScenarioModel>(*run->config());
  }
  out.of_run = std::make_shared<const sim::ScenarioModel>(run);
  out.recorded = std::move(run);
  return out;
}

PlanSubject PlanSubject::of(const plan::ModelConfig& config) {
  PlanSubject out;
  out.of_config = std::make_shared<const sim::ScenarioModel>(config);
  return out;
}

const plan::ModuleTree& PlanSubject::tree() const {
  return of_run != nullptr ? of_run->tree() : of_config->tree();
}

std::vector<MachineChoice> machine_choices(const PlanSubject& subject, const QString& chosen) {
  std::vector<MachineChoice> out;
  const bool device =
      subject.recorded != nullptr && subject.recorded->observation().host == sim::HostMode::kAhead;
  if (subject.recorded != nullptr) {
    const QString run = QString::fromUtf8(kMachineOfRun);
    out.push_back({run, machineText(run), QObject::tr("The machine as measured in the open run")});
  }
  for (const std::string& name : sim::hardware_names()) {
    const QString spec = QString::fromStdString(name);
    if (device) {
      out.push_back({kRunAnd + spec, machineText(kRunAnd + spec),
                     QObject::tr("The machine as measured in the run; %1's specification for what "
                                 "cannot be measured there (other numbers of ranks)")
                         .arg(spec)});
    }
    if (subject.of_config != nullptr) {
      out.push_back(
          {spec, spec,
           QObject::tr("The machine of this specification; nothing measured in the run is used")});
    }
  }
  if (!chosen.isEmpty() && std::ranges::find(out, chosen, &MachineChoice::name) == out.end()) {
    out.push_back({chosen, machineText(chosen), QObject::tr("The machine of %1").arg(chosen)});
  }
  return out;
}

QString machineText(const QString& machine) {
  return machine == QLatin1String(kMachineOfRun) ? QObject::tr("this run")
         : machine.startsWith(kRunAnd)
             ? QObject::tr("this run, otherwise %1").arg(machine.mid(kRunAnd.size()))
             : QFileInfo(machine).fileName();
}

std::optional<sim::HardwareSpec> spec_of(const QString& machine) {
  const QString name = machine.startsWith(kRunAnd)               ? machine.mid(kRunAnd.size())
                       : machine == QLatin1String(kMachineOfRun) ? QString()
                                                                 : machine;
  return name.isEmpty() ? std::nullopt : std::optional(sim::load_hardware(name.toStdString()));
}

sim::Scenario scenario_of(const PlanSubject& subject, const PlanState& state) {
  const bool own = state.machine == QLatin1String(kMachineOfRun);
  const bool both = state.machine.startsWith(kRunAnd);
  sim::Scenario out;
  out.plan = state.plan;
  out.world_size = state.world_size;
  out.step = state.step;
  if (state.machine.isEmpty()) {
    throw InputError("", "no machine is chosen: choose one under Machine");
  }
  if (own || both) {
    if (subject.recorded == nullptr) {
      throw InputError("", "no machine could be calibrated from the run: choose one under Machine");
    }
    if (state.transport != sim::Transport::kRing) {
      throw InputError("",
                       "the run's collectives were measured as they were: another transport "
                       "needs a machine that is only a specification");
    }
    if (!state.stack.isEmpty() || state.power_watts) {
      throw InputError("",
                       "the run's machine was measured as it was: a stack or a power limit needs a "
                       "machine that is only a specification");
    }
    out.model = subject.of_run;
    out.machine = own ? subject.recorded->machine()
                      : std::make_shared<const sim::TargetMachine>(
                            *subject.recorded->machine()->calibration(),
                            state.machine.mid(kRunAnd.size()).toStdString());
    return out;
  }
  if (subject.of_config == nullptr) {
    throw InputError("",
                     "the traces do not contain the model's configuration, so only the run's own "
                     "machine can be simulated; open a capture directory with config.json");
  }
  out.model = subject.of_config;
  const std::string stack = sim::stack_or_default(
      state.stack.toStdString(), state.machine.toStdString(), *subject.of_config->config());
  const auto program = sim::program_of_stack(stack);
  out.step.program = program.value_or(out.step.program);
  sim::HardwareSpec spec = sim::hardware_under(
      state.machine.toStdString(), stack,
      program ? !plan::is_engine(*program) : subject.of_config->config()->file != nullptr);
  if (state.power_watts) {
    spec = sim::with_power_limit(std::move(spec), *state.power_watts);
  }
  if (const std::string why = sim::refusal_of(state.transport, spec); !why.empty()) {
    throw InputError("", "transport " + why);
  }
  spec.fabric.transport = state.transport;
  out.machine = std::make_shared<const sim::TargetMachine>(std::move(spec));
  return out;
}

PlanState own_state(const PlanSubject& subject) {
  const sim::Scenario own = sim::own_scenario(subject.recorded);
  return {own.plan, QString::fromUtf8(kMachineOfRun), own.world_size, own.step};
}

}  // namespace shardlens::gui
