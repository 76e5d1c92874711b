#include "gui/model/run/run_notes.h"

#include <algorithm>

#include <QCoreApplication>

#include "gui/model/base/shown_text.h"

namespace shardlens::gui {
namespace {

QString translated(const char* text) {
  return QCoreApplication::translate("shardlens::gui::RunNotes", text);
}

}  // namespace

bool is_simulated(const RunData& run) {
  return std::any_of(run.run.traces.begin(), run.run.traces.end(),
                     [](const trace::Trace& trace) { return trace.metadata.simulated(); });
}

QStringList notes_of(const RunData& run) {
  QStringList out;
  if (is_simulated(run)) {
    out.append(translated("Simulated: no number in this window was measured."));
  }
  if (!run.unfit.isEmpty()) {
    out.append(
        translated("The plan %1. The lanes are those of a GPU with enough memory.").arg(run.unfit));
  }
  const bool rewritten = !run.ranks.empty() && run.ranks.front()->timeline.rewritten;
  if (!run.run.plan_problem.empty() && rewritten) {
    out.append(translated("There is no planned order: %1").arg(shown_text(run.run.plan_problem)));
  } else if (!run.run.plan_problem.empty()) {
    out.append(
        translated(
            "The plan.json next to the traces could not be used, so there is no planned order, "
            "ownership or What if: %1")
            .arg(shown_text(run.run.plan_problem)));
  }
  QStringList empty;
  for (const auto& rank : run.ranks) {
    if (rank->trace.events.empty()) {
      empty.append(QString::number(rank->figures.rank));
    }
  }
  constexpr qsizetype kNamed = 12;
  if (run.event_count == 0) {
    out.append(
        translated("The trace has no events: there is nothing to show. Was the profiler stopped "
                   "before a step ended?"));
  } else if (!empty.isEmpty()) {
    out.append(translated("No events in the traces of these ranks: %1")
                   .arg(empty.mid(0, kNamed).join(QStringLiteral(", ")) +
                        (empty.size() > kNamed ? QStringLiteral(" …") : QString())));
  }
  return out;
}

}  // namespace shardlens::gui
