#include "gui/view/timeline/timeline_layout.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace shardlens::gui {
namespace {

constexpr double kRankHeight = 22, kSummaryHeight = 22, kLaneHeight = 22, kRowHeight = 14,
                 kHostHeight = 16, kQueueHeight = 30, kMemoryHeight = 54, kGap = 2;
constexpr size_t kMostRows = 6;      // of one lane; items on further rows are found in Events
constexpr size_t kMostNested = 16;   // the same of nested operators
constexpr double kMostPinned = 0.6;  // of the room; lanes pinned beyond it are only in their place
constexpr QLatin1String kQueueLane("queue"), kMemoryLane("memory"), kNestedLane("nested operators");

double height_of(const Lane& lane) {
  if (lane.kind == Kind::kHost) {
    return kHostHeight;
  }
  return lane.rows.size() > 1 ? kRowHeight : kLaneHeight;
}

constexpr double kMostGrowth = 1.7;

bool is_header(const TimelineLayout::Band& band) {
  return band.kind == TimelineLayout::Band::Kind::kRank ||
         band.kind == TimelineLayout::Band::Kind::kGhostHeader;
}

void spread(TimelineLayout& layout, double room) {
  double fixed = 0, grows = 0;
  for (const TimelineLayout::Band& band : layout.bands) {
    (is_header(band) ? fixed : grows) += band.height;
    fixed += kGap;
  }
  const double scale = grows == 0 ? 1 : std::clamp((room - fixed) / grows, 1.0, kMostGrowth);
  double top = 0;
  for (TimelineLayout::Band& band : layout.bands) {
    band.height = is_header(band) ? band.height : std::floor(band.height * scale);
    band.top = top;
    top += band.height + kGap;
    layout.pinned = band.pinned ? top : layout.pinned;
  }
  layout.height = top;
}

using Band = TimelineLayout::Band;

// The bands of a lane, in LaneArrangement's words.
struct LaneBands {
  QString name;
  std::vector<Band> bands;
};

void append_rows(std::vector<Band>& out, const Lane& lane, size_t index, Band like) {
  const size_t most = lane.thread.isEmpty() ? kMostRows : kMostNested;
  const size_t rows = std::min(most, lane.rows.size());
  like.lane = index;
  like.height = height_of(lane);
  for (size_t row = 0; row < rows; ++row) {
    const bool cut = row + 1 == rows && rows < lane.rows.size();
    like.row = row;
    like.label = cut        ? QObject::tr("+%1 rows").arg(lane.rows.size() - rows)
                 : row == 0 ? lane_label(lane)
                            : QString();
    out.push_back(like);
  }
}

// The lanes in their default order. `like`: kind and rank of the bands; `nested`: may be null.
std::vector<LaneBands> lanes_of(const RankData& of, const std::vector<Lane>* nested, Band like) {
  std::vector<LaneBands> out;
  const auto add = [&out, &like](const QString& name, const auto& fill) {
    like.name = name;
    out.push_back({name, {}});
    fill(out.back().bands, like);
  };
  bool placed = nested == nullptr;
  const auto add_nested = [&] {
    if (!std::exchange(placed, true)) {
      add(kNestedLane, [&](std::vector<Band>& bands, const Band& band) {
        for (size_t i = 0; i < nested->size(); ++i) {
          append_rows(bands, (*nested)[i], of.lanes.size() + i, band);
        }
      });
    }
  };
  for (size_t i = 0; i < of.lanes.size(); ++i) {
    const Lane& lane = of.lanes[i];
    if (lane.source != Lane::Source::kSections) {
      add_nested();  // below what the host worked on
    }
    if (nested != nullptr && lane.name == Lane::kOperators) {
      continue;  // they are among the nested ones
    }
    add(lane_name(lane),
        [&](std::vector<Band>& bands, const Band& band) { append_rows(bands, lane, i, band); });
    if (lane.name == Lane::kCalls && !of.queue.empty() && like.kind == Band::Kind::kLane) {
      add(kQueueLane, [&](std::vector<Band>& bands, Band band) {
        band.kind = Band::Kind::kQueue;
        band.height = kQueueHeight;
        band.label = QObject::tr("queue");
        bands.push_back(band);
      });
    }
  }
  add_nested();
  if (!of.figures.memory.empty() && like.kind == Band::Kind::kLane) {
    add(kMemoryLane, [&](std::vector<Band>& bands, Band band) {
      band.kind = Band::Kind::kMemory;
      band.height = kMemoryHeight;
      band.label = QObject::tr("memory");
      bands.push_back(band);
    });
  }
  return out;
}

QStringList names_of(const std::vector<LaneBands>& lanes) {
  QStringList out;
  for (const LaneBands& lane : lanes) {
    out.append(lane.name);
  }
  return out;
}

// Adds bands to a layout, from top to bottom.
class LayoutBuilder {
 public:
  explicit LayoutBuilder(const ShownLanes& shown) : shown_(shown) {}
  void add(Band band) {
    band.top = layout.height;
    layout.height += band.height + kGap;
    layout.bands.push_back(std::move(band));
  }
  void addLanes(const std::vector<LaneBands>& lanes) {
    for (const QString& name : shown_.arrangement.arranged(names_of(lanes))) {
      if (!shown_.arrangement.hidden.contains(name)) {
        for (const Band& band : std::ranges::find(lanes, name, &LaneBands::name)->bands) {
          add(band);
        }
      }
    }
  }
  void addPinned(const LaneArrangement::Pin& pin, double room) {
    for (size_t rank = 0; rank < shown_.run.ranks.size(); ++rank) {
      const RankData& of = *shown_.run.ranks[rank];
      if (of.figures.rank != pin.rank) {
        continue;
      }
      Band like{Band::Kind::kLane, rank};
      like.pinned = true;
      for (LaneBands& lane : lanes_of(of, nestedOf(rank), like)) {
        double height = 0;
        for (const Band& band : lane.bands) {
          height += band.height + kGap;
        }
        if (lane.name != pin.lane || layout.height + height > kMostPinned * room) {
          continue;
        }
        for (Band& band : lane.bands) {
          band.label = band.row > 0 ? band.label
                                    : QObject::tr("%1: %2").arg(of.figures.rank).arg(band.label);
          add(std::move(band));
        }
      }
    }
  }
  [[nodiscard]] const std::vector<Lane>* nestedOf(size_t rank) const {
    const auto found = shown_.nested.find(rank);
    return found == shown_.nested.end() ? nullptr : &found->second;
  }
  TimelineLayout layout;

 private:
  const ShownLanes& shown_;
};

}  // namespace

QString lane_label(const Lane& lane) {
  if (!lane.thread.isEmpty()) {
    return lane.thread;
  }
  if (lane.source == Lane::Source::kExposed) {
    return QStringLiteral("exposed ▨");
  }
  if (lane.source == Lane::Source::kResidency) {
    return QObject::tr("gathered units");
  }
  if (lane.source == Lane::Source::kIdle) {
    return QObject::tr("idle");
  }
  if (lane.source == Lane::Source::kRegions) {
    return QObject::tr("regions");
  }
  return lane.name != nullptr ? QObject::tr(lane.name) : QString::fromUtf8(label_of(lane.kind));
}

QString lane_name(const Lane& lane) {
  if (!lane.thread.isEmpty()) {
    return kNestedLane;
  }
  switch (lane.source) {
    case Lane::Source::kExposed:
      return QStringLiteral("exposed");
    case Lane::Source::kResidency:
      return QStringLiteral("gathered units");
    case Lane::Source::kIdle:
      return QStringLiteral("idle");
    case Lane::Source::kRegions:
      return QStringLiteral("regions");
    default:
      return QString::fromUtf8(lane.name != nullptr ? lane.name : label_of(lane.kind));
  }
}

QStringList lane_names(const RankData& rank, bool nested) {
  const std::vector<Lane> none;
  return names_of(lanes_of(rank, nested ? &none : nullptr, {Band::Kind::kLane}));
}

TimelineLayout layout_of(const ShownLanes& shown, double room) {
  LayoutBuilder out(shown);
  for (const LaneArrangement::Pin& pin : shown.arrangement.pinned) {
    out.addPinned(pin, room);
  }
  const Ghost& ghost = shown.ghost;
  for (size_t rank = 0; rank < shown.run.ranks.size(); ++rank) {
    const RankData& of = *shown.run.ranks[rank];
    out.add({Band::Kind::kRank, rank, 0, 0, 0, kRankHeight,
             QObject::tr("rank %1").arg(of.figures.rank)});
    if (shown.collapsed.contains(rank)) {
      out.add({Band::Kind::kSummary, rank, 0, 0, 0, kSummaryHeight, {}});
    } else {
      out.addLanes(lanes_of(of, out.nestedOf(rank), {Band::Kind::kLane, rank}));
    }
    if (ghost.run != nullptr && rank == ghost.rank) {
      out.add({Band::Kind::kGhostHeader, rank, 0, 0, 0, kRankHeight, ghost.title});
      out.addLanes(lanes_of(ghost.data(), nullptr, {Band::Kind::kGhostLane, rank}));
    }
  }
  spread(out.layout, room);
  return std::move(out.layout);
}

const TimelineLayout::Band* TimelineLayout::at(double y, double scroll) const {
  const double below = y < pinned ? y : y + scroll;
  const auto after = std::upper_bound(bands.begin(), bands.end(), below,
                                      [](double value, const Band& b) { return value < b.top; });
  if (after == bands.begin()) {
    return nullptr;
  }
  const Band& band = *std::prev(after);
  return below < band.top + band.height ? &band : nullptr;
}

const TimelineLayout::Band* TimelineLayout::find(size_t rank, size_t lane, size_t row) const {
  const auto found = std::find_if(bands.begin(), bands.end(), [&](const Band& b) {
    return b.kind == Band::Kind::kLane && b.rank == rank && b.lane == lane && b.row == row &&
           !b.pinned;
  });
  return found == bands.end() ? nullptr : &*found;
}

namespace {

bool is_ghost(const TimelineLayout::Band& band) {
  return band.kind == TimelineLayout::Band::Kind::kGhostHeader ||
         band.kind == TimelineLayout::Band::Kind::kGhostLane;
}

template <class Chosen>
std::optional<TimelineLayout::Extent> extent_of(const TimelineLayout& layout,
                                                const Chosen& chosen) {
  std::optional<TimelineLayout::Extent> out;
  for (const TimelineLayout::Band& band : layout.bands) {
    if (!band.pinned && chosen(band)) {
      out = {out ? out->top : band.top, band.top + band.height};
    }
  }
  return out;
}

}  // namespace

TimelineLayout::Extent TimelineLayout::extentOf(size_t rank) const {
  return extent_of(*this, [rank](const Band& band) { return band.rank == rank && !is_ghost(band); })
      .value_or(Extent{});
}

std::optional<TimelineLayout::Extent> TimelineLayout::extentOfGhost() const {
  return extent_of(*this, is_ghost);
}

}  // namespace shardlens::gui
