#include <algorithm>

#include "gui/model/base/shown_text.h"
#include "gui/model/details/idle_reason.h"
#include "gui/model/lanes/residency.h"
#include "gui/model/run/run_notes.h"
#include "gui/view/timeline/timeline_scene.h"
#include "profiler/report/table.h"

namespace shardlens::gui {

using analysis::Interval;

namespace {

// "gathered at 1.2 ms: (root), model.layers.3; 12 more units are sharded"
QString gathered_text(const RankData& rank, Nanoseconds own, const QString& when) {
  std::vector<std::string> all;
  for (const Residency& each : rank.residencies) {
    if (std::ranges::find(all, each.unit) == all.end()) {
      all.push_back(each.unit);
    }
  }
  const std::vector<std::string> now = gathered_at(rank.residencies, own);
  QStringList names;
  for (const std::string& unit : now) {
    names.append(shown_text(unit_label(unit)));
  }
  const auto sharded = static_cast<qlonglong>(all.size()) - static_cast<qlonglong>(now.size());
  return names.empty()
             ? QObject::tr("%1: no unit is gathered, %2 are sharded").arg(when).arg(sharded)
             : QObject::tr("%1: gathered %2; %3 more are sharded")
                   .arg(when, names.join(QStringLiteral(", ")))
                   .arg(sharded);
}

}  // namespace

namespace {

QString most_text(const analysis::MemoryFigures& memory) {
  return memory.from_driver ? QObject::tr("%1: up to %2 more from the driver since recording began")
                                  .arg(shown_text(memory.device), bytesText(memory.peak.allocated))
                            : QObject::tr("%1: peak %2 allocated, %3 reserved")
                                  .arg(shown_text(memory.device), bytesText(memory.peak.allocated),
                                       bytesText(memory.peak_reserved));
}

}  // namespace

QStringList TimelineScene::gutterLines(const Band& band) const {
  const RankData& rank = drawnOn(band).rank;
  if (band.kind == Band::Kind::kQueue) {
    return {band.label, QObject::tr("at most %1").arg(rank.figures.launch.queue_max)};
  }
  if (band.kind == Band::Kind::kMemory) {
    return {band.label,
            QObject::tr("peak %1").arg(bytesText(LaneDrawing::shownMemory(rank).peak.allocated))};
  }
  return {band.label};
}

QString TimelineScene::textAtCursor(const Band& band) const {
  const DrawnRank drawn = drawnOn(band);
  const RankData& rank = drawn.rank;
  const Interval own = drawn.pixels(axis.toPixel(*cursor), 1);
  const QString when = timeText(*cursor - drawn.shift, axis.nanosecondsPerPixel());
  const bool lane = band.kind == Band::Kind::kLane || band.kind == Band::Kind::kGhostLane;
  if (band.kind == Band::Kind::kQueue) {
    return QObject::tr("%1: %2 events are launched and have not begun; at most %3, %4 on average")
        .arg(when)
        .arg(rank.queue.most({own.start, std::max(own.end, own.start + 1)}))
        .arg(rank.figures.launch.queue_max)
        .arg(rank.figures.launch.queue_mean, 0, 'f', 1);
  }
  if (band.kind == Band::Kind::kMemory) {
    const analysis::MemoryFigures& memory = LaneDrawing::shownMemory(rank);
    const std::vector<analysis::MemoryPoint>& points = memory.timeline;
    const auto after =
        std::ranges::upper_bound(points, own.start, {}, &analysis::MemoryPoint::time);
    return after == points.begin()
               ? QString()
               : QObject::tr("%1: %2 allocated, %3 reserved; %4")
                     .arg(when, bytesText(std::prev(after)->allocated),
                          bytesText(std::prev(after)->reserved), most_text(memory));
  }
  return lane && band.lane < rank.lanes.size() &&
                 rank.lanes[band.lane].source == Lane::Source::kResidency
             ? gathered_text(rank, own.start, when)
             : QString();
}

QString description_of(const RunData& run, const Selection::Item& item) {
  const RankData& rank = *run.ranks[item.rank];
  const Interval own = interval_of(rank, item);
  const Interval shown = run.shown(rank, own);
  QString what;
  switch (item.source) {
    case Lane::Source::kEvents: {
      what = shown_text(rank.trace.name(rank.trace.events[item.ref]));
      const std::string owner = rank.owner_of_event(item.ref);
      what += owner.empty() ? QString() : QStringLiteral(" (%1)").arg(shown_text(owner));
      break;
    }
    case Lane::Source::kSections: {
      const analysis::Owner& owner = rank.timeline.sections.parts()[item.ref].owner;
      what =
          QObject::tr("host: %1").arg(QString::fromStdString(std::string(name_of(owner.section))));
      if (owner.unit != kNoUnit) {
        what += QStringLiteral(" (%1)").arg(
            shown_text(unit_label(rank.timeline.fsdp.units[owner.unit].fqn)));
      }
      break;
    }
    case Lane::Source::kResidency: {
      const Residency& held = rank.residencies[item.ref];
      what = QObject::tr("parameters of %1, gathered for %2")
                 .arg(shown_text(unit_label(held.unit)), durationText(held.when.end - held.usable));
      break;
    }
    case Lane::Source::kIdle:
      what = QObject::tr("idle, %1").arg(idle_text(rank, item.ref));
      break;
    case Lane::Source::kRegions:
      what = shown_text(rank.regions[item.ref].name);
      break;
    default: {
      what = QStringLiteral("%1 (%2)").arg(label_of(rank.timeline.collectives[item.ref]),
                                           shown_text(unit_label(rank.owner_of(item.ref))));
      if (!run.preview) {
        what += QObject::tr(", exposed %1").arg(durationText(length_of(rank.exposed(item.ref))));
      }
      break;
    }
  }
  return (is_simulated(run) ? QObject::tr("simulated, rank %1: %2, %3 at %4")
                            : QObject::tr("rank %1: %2, %3 at %4"))
      .arg(rank.figures.rank)
      .arg(what, durationText(own.length()), timeText(shown.start, 1e3));
}

}  // namespace shardlens::gui
