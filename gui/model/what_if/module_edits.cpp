#include "gui/model/what_if/module_edits.h"

#include <algorithm>

#include "core/base/dtype.h"
#include "core/base/error.h"
#include "core/edits/module_values.h"
#include "core/plan/resolve.h"
#include "gui/model/base/in_window.h"
#include "sim/scenario/scenario.h"

namespace shardlens::gui {

using plan::Plan;
using plan::ResolvedPlan;

std::vector<PlanKnob> module_knobs(const plan::ModuleTree& tree,
                                   int64_t world_size,
                                   const std::vector<std::string>& modules) {
  std::vector<PlanKnob> out;
  for (const plan::PlanKey key : plan::module_keys()) {
    out.push_back(knob_of(key, plan::module_values(key, tree, world_size, modules)));
  }
  return out;
}

QString module_plan_text(const ResolvedPlan& plan, uint32_t module) {
  const auto found = std::find_if(plan.units.begin(), plan.units.end(), [&](const auto& unit) {
    return std::find(unit.modules.begin(), unit.modules.end(), module) != unit.modules.end();
  });
  if (found == plan.units.end()) {
    return {};
  }
  using How = plan::Reshard::Kind;
  QStringList words{found->modules.size() > 1 ? QObject::tr("unit of %1").arg(found->modules.size())
                                              : QObject::tr("unit")};
  if (found->api == plan::Api::kReplicate) {
    words.append(QObject::tr("replicate"));
  } else if (found->reshard_after_forward.kind == How::kNo) {
    words.append(QObject::tr("kept"));
  } else if (found->reshard_after_forward.kind == How::kSubMesh) {
    words.append(QObject::tr("kept over %1").arg(found->reshard_after_forward.ranks));
  }
  if (const auto dtype = found->mixed_precision.param_dtype) {
    words.append(QString::fromStdString(std::string(plan_name(*dtype))));
  }
  if (!found->forward_prefetch.empty()) {
    words.append(QStringLiteral("→%1").arg(found->forward_prefetch.size()));
  }
  return words.join(QStringLiteral(", "));
}

PlanStanding standing_of(const Plan& plan, const plan::ModuleTree& tree, int64_t world_size) {
  PlanStanding out{false, {}};
  try {
    // Also checked as a plan file: some keys are valid only with one API.
    (void)plan::parse_plan(plan::to_json(plan), plan.source);
    const ResolvedPlan resolved = plan::resolve(plan, tree, world_size);
    out.resolves = true;
    plan::require_engine_support(resolved);
  } catch (const Error& error) {
    out.why = QString::fromStdString(error.what());
  }
  return out;
}

StateStanding standing_of(const PlanSession& session, const PlanState& state) {
  const PlanStanding plan = standing_of(state.plan, session.tree(), state.world_size);
  if (!plan.resolves) {
    return {in_window(plan.why), QObject::tr("   (refused)"), false};
  }
  QString refusal;
  try {
    refusal = QString::fromStdString(sim::refusal_of(scenario_of(session.subject(), state)));
  } catch (const std::exception& error) {
    refusal = QString::fromStdString(error.what());
  }
  if (!refusal.isEmpty()) {
    return {in_window(refusal),
            session.recorded() != nullptr && state.machine == QLatin1String(kMachineOfRun)
                ? QObject::tr("   (not known from the run)")
                : QObject::tr("   (not simulated)"),
            false};
  }
  return {in_window(plan.why),
          plan.why.isEmpty() ? QString() : QObject::tr("   (not supported by the engine yet)"),
          true};
}

}  // namespace shardlens::gui
