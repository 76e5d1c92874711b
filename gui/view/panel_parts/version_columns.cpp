#include "gui/view/panel_parts/version_columns.h"

#include <limits>

#include <QLocale>
#include <QObject>

#include "gui/model/base/in_window.h"
#include "gui/model/base/time_axis.h"
#include "gui/model/what_if/fit_text.h"

namespace shardlens::gui {
std::vector<ColumnTable::Column> version_columns(const PlanSession& session) {
  const auto of = [&session](size_t r) -> const PlanVersion& { return session.versions()[r]; };
  const auto figure = [of](auto&& text) {
    return
        [of, text](size_t r) { return of(r).error.isEmpty() ? text(of(r)) : QStringLiteral("–"); };
  };
  // A plan that does not fit has no step.
  const auto of_step = [of](auto&& text) {
    return [of, text](size_t r) { return of(r).hasStep() ? text(of(r)) : QStringLiteral("–"); };
  };
  const auto key = [of](auto&& value) {
    return [of, value](size_t r) {
      return of(r).hasStep() ? static_cast<double>(value(of(r)))
                             : std::numeric_limits<double>::max();
    };
  };
  const auto base = [&session]() -> const PlanVersion& { return session.versions().front(); };
  // The most important columns first: without enough room, columns are hidden from the last one on.
  return {
      {QObject::tr("#"), [](size_t r) { return QStringLiteral("v%1").arg(r); },
       [](size_t r) { return static_cast<double>(r); }},
      {QObject::tr("Change"), [of](size_t r) { return of(r).title; }},
      {QObject::tr("Step"), of_step([](const PlanVersion& v) { return durationText(v.step()); }),
       key([](const PlanVersion& v) { return v.step(); }), true,
       QObject::tr("Simulated; none for a plan that does not fit"), ColumnTable::Scale::kDuration,
       true},
      {QObject::tr("Δ step"), of_step([base](const PlanVersion& v) {
         return base().hasStep()
                    ? changeText(static_cast<double>(v.step()), static_cast<double>(base().step()))
                    : QStringLiteral("–");
       }),
       nullptr, true, QObject::tr("Change from v0, which is simulated too")},
      {QObject::tr("90 % interval"), of_step([base](const PlanVersion& v) {
         const auto& interval = v.prediction.change_interval;
         const auto share = [&base](Nanoseconds by) {
           return signedPercent(static_cast<double>(by) / static_cast<double>(base().step()));
         };
         return !interval || !base().hasStep() ? QStringLiteral("–")
                : interval->low == 0 && interval->high == 0
                    ? QStringLiteral("=")
                    : QObject::tr("%1 to %2 %").arg(share(interval->low), share(interval->high));
       }),
       nullptr, true,
       QObject::tr(
           "Of the change from v0; only on the machine of the run, see shardlens docs simulator")},
      {QObject::tr("Off by"), figure([](const PlanVersion& v) {
         return v.prediction.baseline ? baselineText(v.prediction.baseline) : QStringLiteral("–");
       }),
       nullptr, true,
       QObject::tr(
           "The simulator's error for the run's own plan, whose step was measured; none for "
           "versions that use no measurement of the run")},
      {QObject::tr("By part"), figure([&session](const PlanVersion& v) {
         const QString text = baselinePartsText(session.baselineParts());
         return v.prediction.baseline && !text.isEmpty() ? text : QStringLiteral("–");
       }),
       nullptr, false,
       QObject::tr("What Off by consists of, in percent of the measured step: errors of parts may "
                   "cancel")},
      {QObject::tr("Machine"), [of](size_t r) { return machineText(of(r).state.machine); }},
      {QObject::tr("Peak"), figure([](const PlanVersion& v) {
         const sim::StepMemory& memory = v.prediction.memory;
         return memory.fits ? bytesText(v.peak())
                            : needText(v.peak(), memory.peak_reserved, v.prediction.available);
       }),
       [of](size_t r) { return static_cast<double>(of(r).peak()); }, true,
       QObject::tr("Allocated on the rank that needs the most; of a plan that does not fit, and of "
                   "how much"),
       ColumnTable::Scale::kNone, true},
      {QObject::tr("Δ peak"), figure([base](const PlanVersion& v) {
         return changeText(static_cast<double>(v.peak()), static_cast<double>(base().peak()));
       }),
       nullptr, true},
      {QObject::tr("Engine"),
       [of](size_t r) {
         return !of(r).error.isEmpty()   ? QObject::tr("refused: %1").arg(in_window(of(r).error))
                : of(r).engine.isEmpty() ? QObject::tr("runs it")
                                         : QObject::tr("cannot run it yet");
       }},
      {QObject::tr("Exposed"),
       of_step(
           [](const PlanVersion& v) { return durationText(v.prediction.figures.exposed_comm); }),
       key([](const PlanVersion& v) { return v.prediction.figures.exposed_comm; }),
       true,
       {},
       ColumnTable::Scale::kDuration},
      {QObject::tr("Tokens/s"), of_step([](const PlanVersion& v) {
         return QLocale().toString(v.prediction.tokens_per_s, 'f', 0);
       }),
       key([](const PlanVersion& v) { return v.prediction.tokens_per_s; }), true}};
}

}  // namespace shardlens::gui
