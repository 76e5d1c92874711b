#include <QSettings>

#include "gui/view/timeline/timeline_view.h"
#include "gui/view/window/command_adder.h"
#include "gui/view/window/commands.h"

namespace shardlens::gui {
namespace {

constexpr QLatin1String kOrderKey("lanes/order"), kHiddenKey("lanes/hidden"),
    kPinnedKey("lanes/pinned"), kNestedKey("lanes/nested");

LaneArrangement kept_lanes(const QSettings& settings) {
  LaneArrangement out;
  out.order = settings.value(kOrderKey).toStringList();
  out.hidden = settings.value(kHiddenKey).toStringList();
  out.nested = settings.value(kNestedKey, false).toBool();
  for (const QString& pin : settings.value(kPinnedKey).toStringList()) {  // "3 compute"
    bool is_number = false;
    const int64_t rank = pin.section(u' ', 0, 0).toLongLong(&is_number);
    if (is_number) {
      out.pinned.push_back({rank, pin.section(u' ', 1)});
    }
  }
  return out;
}

void keep_lanes(QSettings& settings, const LaneArrangement& lanes) {
  QStringList pinned;
  for (const LaneArrangement::Pin& pin : lanes.pinned) {
    pinned.append(QStringLiteral("%1 %2").arg(pin.rank).arg(pin.lane));
  }
  settings.setValue(kOrderKey, lanes.order);
  settings.setValue(kHiddenKey, lanes.hidden);
  settings.setValue(kPinnedKey, pinned);
  settings.setValue(kNestedKey, lanes.nested);
}

}  // namespace

void add_lane_commands(const WindowParts& parts) {
  TimelineView& timeline = parts.timeline();
  QSettings& settings = parts.settings;
  timeline.arrange(kept_lanes(settings));
  QObject::connect(&timeline, &TimelineView::arranged, &timeline, [&timeline, &settings] {
    keep_lanes(settings, timeline.scene().arrangement());
  });
  for (auto signal : {&TimelineView::arranged, &TimelineView::laneUnderPointer}) {
    QObject::connect(&timeline, signal, &parts.actions, &ActionRegistry::refresh);
  }
  const auto has_lane = [&timeline] { return timeline.chosenLane().has_value(); };
  CommandAdder lane(parts.actions, QObject::tr("&View"), has_lane,
                    QObject::tr("Select an event, or point at a lane"));
  const auto on_lane = [&timeline](auto act) {
    return [&timeline, act] {
      if (const auto chosen = timeline.chosenLane()) {
        act(*chosen);
      }
    };
  };
  using LaneAt = TimelineView::LaneAt;
  lane.separate();
  lane.add(QStringLiteral("lane.pin"), QObject::tr("Pin or unpin the lane"), {QStringLiteral("P")},
           on_lane([&timeline](const LaneAt& chosen) { timeline.togglePin(chosen); }));
  lane.add(QStringLiteral("lane.hide"), QObject::tr("Hide the lane"), {QStringLiteral("H")},
           on_lane([&timeline](const LaneAt& chosen) { timeline.toggleHidden(chosen.name); }));
  lane.add(QStringLiteral("lane.up"), QObject::tr("Move the lane up"), {QStringLiteral("Alt+Up")},
           on_lane([&timeline](const LaneAt& chosen) { timeline.moveLane(chosen, -1); }));
  lane.add(QStringLiteral("lane.down"), QObject::tr("Move the lane down"),
           {QStringLiteral("Alt+Down")},
           on_lane([&timeline](const LaneAt& chosen) { timeline.moveLane(chosen, 1); }));
  lane.add(
      QStringLiteral("lane.first"), QObject::tr("Show all lanes, in their first order"),
      {QStringLiteral("Shift+H")},
      [&timeline] {
        LaneArrangement first;
        first.nested = timeline.scene().arrangement().nested;
        timeline.arrange(first);
      },
      [&timeline] {
        LaneArrangement now = timeline.scene().arrangement();
        now.nested = false;
        return !now.isFirst();
      },
      QObject::tr("No lane is pinned, hidden or moved"));
  lane.add(
      QStringLiteral("lane.nested"), QObject::tr("Show or hide nested operators"),
      {QStringLiteral("N")}, [&timeline] { timeline.toggleNested(); },
      [parts] { return parts.hasRun(); }, QObject::tr("Open a run first"));
}

}  // namespace shardlens::gui
