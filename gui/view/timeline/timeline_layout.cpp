#include "gui/view/timeline/timeline_layout.h"

#include <algorithm>
#include <cmath>

namespace shardlens::gui {
namespace {

constexpr double kRankHeight = 22, kSummaryHeight = 22, kLaneHeight = 22, kRowHeight = 14,
                 kHostHeight = 16, kQueueHeight = 30, kMemoryHeight = 54, kGap = 2;
constexpr size_t kMostRows = 6;  // of one lane; items on further rows are found in Events

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
  }
  layout.height = top;
}

}  // namespace

QString lane_label(const Lane& lane) {
  if (lane.source == Lane::Source::kExposed) {
    return QStringLiteral("exposed ▨");
  }
  if (lane.source == Lane::Source::kResidency) {
    return QObject::tr("gathered units");
  }
  if (lane.source == Lane::Source::kIdle) {
    return QObject::tr("idle");
  }
  return lane.name != nullptr ? QObject::tr(lane.name) : QString::fromUtf8(label_of(lane.kind));
}

TimelineLayout layout_of(const RunData& run,
                         const std::set<size_t>& collapsed,
                         const Ghost& ghost,
                         double room) {
  using Shown = TimelineLayout::Band::Kind;
  TimelineLayout out;
  const auto add = [&out](TimelineLayout::Band band) {
    band.top = out.height;
    out.height += band.height + kGap;
    out.bands.push_back(std::move(band));
  };
  const auto lanes = [&add](const RankData& of, size_t rank, Shown kind) {
    for (size_t lane = 0; lane < of.lanes.size(); ++lane) {
      const size_t rows = std::min(kMostRows, of.lanes[lane].rows.size());
      for (size_t row = 0; row < rows; ++row) {
        const bool cut = row + 1 == rows && rows < of.lanes[lane].rows.size();
        QString label = row == 0 ? lane_label(of.lanes[lane]) : QString();
        if (cut) {
          label = QObject::tr("+%1 rows").arg(of.lanes[lane].rows.size() - rows);
        }
        add({kind, rank, lane, row, 0, height_of(of.lanes[lane]), label});
      }
      if (of.lanes[lane].name == Lane::kCalls && !of.queue.empty() && kind == Shown::kLane) {
        add({Shown::kQueue, rank, 0, 0, 0, kQueueHeight, QObject::tr("queue")});
      }
    }
  };
  for (size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const RankData& of = *run.ranks[rank];
    add({Shown::kRank, rank, 0, 0, 0, kRankHeight, QObject::tr("rank %1").arg(of.figures.rank)});
    if (collapsed.contains(rank)) {
      add({Shown::kSummary, rank, 0, 0, 0, kSummaryHeight, {}});
    } else {
      lanes(of, rank, Shown::kLane);
      if (!of.figures.memory.empty()) {
        add({Shown::kMemory, rank, 0, 0, 0, kMemoryHeight, QObject::tr("memory")});
      }
    }
    if (ghost.run != nullptr && rank == ghost.rank) {
      add({Shown::kGhostHeader, rank, 0, 0, 0, kRankHeight, ghost.title});
      lanes(ghost.data(), rank, Shown::kGhostLane);
    }
  }
  spread(out, room);
  return out;
}

const TimelineLayout::Band* TimelineLayout::at(double y) const {
  const auto after = std::upper_bound(bands.begin(), bands.end(), y,
                                      [](double value, const Band& b) { return value < b.top; });
  if (after == bands.begin()) {
    return nullptr;
  }
  const Band& band = *std::prev(after);
  return y < band.top + band.height ? &band : nullptr;
}

const TimelineLayout::Band* TimelineLayout::find(size_t rank, size_t lane, size_t row) const {
  const auto found = std::find_if(bands.begin(), bands.end(), [&](const Band& b) {
    return b.kind == Band::Kind::kLane && b.rank == rank && b.lane == lane && b.row == row;
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
    if (chosen(band)) {
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
