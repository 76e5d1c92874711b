#include "gui/view/window/ghost_lanes.h"

#include <algorithm>

#include "gui/model/base/time_axis.h"
#include "gui/model/run/run_notes.h"
#include "gui/view/timeline/timeline_view.h"

namespace shardlens::gui {
namespace {

std::optional<size_t> index_of_rank(const RunData& run, int64_t rank) {
  for (size_t i = 0; i < run.ranks.size(); ++i) {
    if (run.ranks[i]->figures.rank == rank) {
      return i;
    }
  }
  return std::nullopt;
}

}  // namespace

GhostLanes::GhostLanes(const WindowParts& parts) : parts_(parts) {
  connect(&parts_.session, &PlanSession::simulatedOne, this, &GhostLanes::update);
  connect(&parts_.session, &PlanSession::stateChanged, this, &GhostLanes::update);
  connect(&parts_.context, &SelectionContext::changed, this, &GhostLanes::update);
  connect(&parts_.compare, &CompareSession::changed, this, &GhostLanes::update);
}

void GhostLanes::toggle() {
  shown_ = !shown_;
  update();
}

void GhostLanes::toggleOwnPlan() {
  own_plan_ = !own_plan_;
  update();
}

// B's rank below the selected one, shifted so that its step with the same number starts where A's
// step starts.
Ghost GhostLanes::comparedGhost() const {
  const RankData& a = *parts_.context.rank();
  const RunData& b = *parts_.compare.b();
  const auto own = index_of_rank(b, a.figures.rank);
  if (!own) {
    return {};
  }
  const Selection& chosen = parts_.context.current();
  Ghost ghost{parts_.compare.b(), *own, chosen.rank, 0, tr("B"), {}};
  const std::vector<analysis::StepAnalysis>& steps = a.figures.steps;
  const std::vector<analysis::StepAnalysis>& others = ghost.data().figures.steps;
  const size_t step = chosen.step.value_or(0);
  const QString label = (is_simulated(b) ? tr("simulated, %1") : QStringLiteral("%1"))
                            .arg(OpenedRun::label(parts_.opened.compared));
  if (step < steps.size() && !others.empty()) {
    size_t other = std::min(step, others.size() - 1);
    for (size_t i = 0; i < others.size(); ++i) {
      other = others[i].step == steps[step].step ? i : other;
    }
    ghost.start = parts_.context.run()->shown(a, steps[step].window).start -
                  b.shown(ghost.data(), others[other].window).start;
    ghost.note = tr("%1: its step %2 (%3) and A's step %4 (%5)")
                     .arg(label)
                     .arg(others[other].step)
                     .arg(durationText(others[other].window.length()))
                     .arg(steps[step].step)
                     .arg(durationText(steps[step].window.length()));
  } else {
    ghost.note = label;
  }
  return ghost;
}

// The simulated step below the run, starting where the selected (else the first) step starts.
Ghost GhostLanes::simulatedGhost() const {
  const RankData& rank = *parts_.context.rank();
  const Selection& chosen = parts_.context.current();
  const PlanVersion* version = parts_.session.current();
  const std::vector<analysis::StepAnalysis>& steps = rank.figures.steps;
  const size_t step = chosen.step.value_or(0);
  const Nanoseconds start =
      step < steps.size() ? parts_.context.run()->shown(rank, steps[step].window).start : 0;
  return {version->run,
          0,
          chosen.rank,
          start,
          tr("simulated"),
          tr("one step of the %1 plan, %2, starting with the %3 step; simulator error: %4")
              .arg(version == &parts_.session.versions().front() ? tr("run's own") : tr("edited"),
                   durationText(version->step()),
                   is_simulated(*parts_.context.run()) ? tr("simulated") : tr("measured"),
                   baselineText(version->prediction.baseline))};
}

void GhostLanes::update() {
  const PlanSession& session = parts_.session;
  const PlanVersion* version = session.current();
  if (!parts_.hasRun() && version != nullptr) {
    return;  // the plan of a model, which is about to be shown as the run
  }
  TimelineView& timeline = parts_.timeline();
  const bool simulates = session.isOpen() && (own_plan_ || parts_.session.undoStack().count() > 0);
  const bool compares = parts_.compare.isOpen() && parts_.context.run() == parts_.compare.a();
  if (parts_.context.rank() == nullptr || !shown_ || (!compares && !simulates)) {
    if (timeline.scene().ghost().run != nullptr) {
      timeline.setGhost({});
    }
  } else if (compares) {
    timeline.setGhost(comparedGhost());
  } else if (version != nullptr) {  // nullptr: the last version stays until the next is simulated
    const bool has_lanes = version->run != nullptr && version->hasStep();
    timeline.setGhost(has_lanes ? simulatedGhost() : Ghost{});
  }
}

}  // namespace shardlens::gui
