#include "gui/view/panel_parts/version_columns.h"

#include <QLocale>
#include <QObject>

#include "gui/model/base/time_axis.h"

namespace shardlens::gui {
std::vector<ColumnTable::Column> version_columns(const PlanSession& session) {
  const auto of = [&session](size_t r) -> const PlanVersion& { return session.versions()[r]; };
  const auto figure = [of](auto&& text) {
    return
        [of, text](size_t r) { return of(r).error.isEmpty() ? text(of(r)) : QStringLiteral("–"); };
  };
  const auto base = [&session]() -> const PlanVersion& { return session.versions().front(); };
  // The most important columns first: without enough room, columns are hidden from the last one on.
  return {
      {QObject::tr("#"), [](size_t r) { return QStringLiteral("v%1").arg(r); },
       [](size_t r) { return static_cast<double>(r); }},
      {QObject::tr("Change"), [of](size_t r) { return of(r).title; }},
      {QObject::tr("Step"), figure([](const PlanVersion& v) { return durationText(v.step()); }),
       [of](size_t r) { return static_cast<double>(of(r).step()); }, true},
      {QObject::tr("Δ step"), figure([base](const PlanVersion& v) {
         return changeText(static_cast<double>(v.step()), static_cast<double>(base().step()));
       }),
       nullptr, true, QObject::tr("Change from v0, which is simulated too")},
      {QObject::tr("Off by"), figure([](const PlanVersion& v) {
         return v.prediction.baseline ? baselineText(v.prediction.baseline) : QStringLiteral("–");
       }),
       nullptr, true,
       QObject::tr(
           "The simulator's error for the run's own plan, whose step was measured; none for "
           "versions that use no measurement of the run")},
      {QObject::tr("Machine"), [of](size_t r) { return machineText(of(r).state.machine); }},
      {QObject::tr("Peak"), figure([](const PlanVersion& v) {
         return bytesText(v.peak()) + (v.prediction.memory.fits ? QString() : QObject::tr(" ✗"));
       }),
       [of](size_t r) { return static_cast<double>(of(r).peak()); }, true,
       QObject::tr("Allocated on the rank that needs the most; ✗: more than the device has")},
      {QObject::tr("Δ peak"), figure([base](const PlanVersion& v) {
         return changeText(static_cast<double>(v.peak()), static_cast<double>(base().peak()));
       }),
       nullptr, true},
      {QObject::tr("Engine"),
       [of](size_t r) {
         return !of(r).error.isEmpty()   ? QObject::tr("refused: %1").arg(of(r).error)
                : of(r).engine.isEmpty() ? QObject::tr("runs it")
                                         : QObject::tr("cannot run it yet");
       }},
      {QObject::tr("Exposed"),
       figure([](const PlanVersion& v) { return durationText(v.prediction.figures.exposed_comm); }),
       [of](size_t r) { return static_cast<double>(of(r).prediction.figures.exposed_comm); }, true},
      {QObject::tr("Tokens/s"), figure([](const PlanVersion& v) {
         return QLocale().toString(v.prediction.tokens_per_s, 'f', 0);
       }),
       [of](size_t r) { return of(r).prediction.tokens_per_s; }, true}};
}

}  // namespace shardlens::gui
