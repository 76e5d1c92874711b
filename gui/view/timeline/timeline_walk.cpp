#include <algorithm>
#include <cmath>

#include "gui/view/timeline/timeline_view.h"

namespace shardlens::gui {
namespace {

constexpr double kMarkPixels = 6;  // a position this close to a bookmark refers to it

}  // namespace

std::optional<Selection::Item> TimelineView::neighbour(int way) const {
  const Selection& chosen = context_.current();
  const auto where = chosen.item ? scene_.place(*chosen.item) : std::nullopt;
  if (!where) {
    return std::nullopt;
  }
  const Lane& lane = scene_.lane(chosen.item->rank, where->lane);
  const LaneItems items = lane.rows[where->row].items();
  const auto next = static_cast<std::ptrdiff_t>(where->index) + way;
  return next >= 0 && next < static_cast<std::ptrdiff_t>(items.size())
             ? std::optional(Selection::Item{chosen.item->rank, lane.source,
                                             items[static_cast<size_t>(next)].ref})
             : std::nullopt;
}

void TimelineView::selectNeighbour(int way) {
  const auto next = neighbour(way);
  if (!next) {
    return;
  }
  context_.selectItem(*next);
  reveal(*context_.itemInterval());
}

void TimelineView::reveal(const analysis::Interval& shown) {
  if (shown.start < scene_.axis.view().start || shown.end > scene_.axis.view().end) {
    const Nanoseconds half = scene_.axis.view().length() / 2;
    scene_.axis.setView({shown.start - half, shown.start + half});
    moved();
  }
}

const std::vector<ExposedCollective>& TimelineView::exposedByCost() const {
  const RankData* rank = context_.rank();
  const analysis::IntervalSet window = context_.window();
  if (walk_.run != context_.run() || walk_.rank != rank || walk_.window != window) {
    walk_ = {context_.run(), rank, window, exposed_within(*rank, window)};
  }
  return walk_.list;
}

// From the most exposed collective of the window to the least.
std::optional<Selection::Item> TimelineView::nextExposed(int way) const {
  if (context_.rank() == nullptr) {
    return std::nullopt;
  }
  const std::vector<ExposedCollective>& list = exposedByCost();
  const Selection& chosen = context_.current();
  const auto at = chosen.item && is_collective(*chosen.item)
                      ? std::ranges::find(list, chosen.item->ref, &ExposedCollective::collective)
                      : list.end();
  const auto count = static_cast<std::ptrdiff_t>(list.size());
  const std::ptrdiff_t next = at != list.end() ? at - list.begin() + way : way > 0 ? 0 : count - 1;
  return next < 0 || next >= count
             ? std::nullopt
             : std::optional(Selection::Item{chosen.rank, Lane::Source::kCollectives,
                                             list[static_cast<size_t>(next)].collective});
}

void TimelineView::selectExposed(int way) {
  if (const auto next = nextExposed(way)) {
    context_.selectItem(*next);
    showInterval(*context_.itemInterval());
  }
}

// Forward: from a collective to the first compute event that ends after the instant at which it was
// needed. Back: from an event to the collective that was needed last before the event's end.
std::optional<Selection::Item> TimelineView::arrowEnd(int way) const {
  const RankData* rank = context_.rank();
  const Selection& chosen = context_.current();
  if (rank == nullptr || !chosen.item) {
    return std::nullopt;
  }
  if (way > 0 && is_collective(*chosen.item)) {
    const auto needed = rank->timeline.collectives[chosen.item->ref].needed_at;
    for (const Lane& lane : rank->lanes) {
      if (!needed || lane.source != Lane::Source::kEvents || lane.kind != Kind::kCompute) {
        continue;
      }
      const size_t next = lane.rows.front().first_ending_after(*needed);
      if (next < lane.rows.front().items().size()) {
        return Selection::Item{chosen.item->rank, lane.source, lane.rows.front().items()[next].ref};
      }
    }
  } else if (way < 0 && chosen.item->source == Lane::Source::kEvents) {
    const Nanoseconds at = interval_of(*rank, *chosen.item).end;
    std::optional<uint32_t> best;
    for (uint32_t i = 0; i < rank->timeline.collectives.size(); ++i) {
      const auto needed = rank->timeline.collectives[i].needed_at;
      if (needed && *needed <= at &&
          (!best || *needed >= *rank->timeline.collectives[*best].needed_at)) {
        best = i;
      }
    }
    if (best) {
      return Selection::Item{chosen.item->rank, Lane::Source::kCollectives, *best};
    }
  }
  return std::nullopt;
}

void TimelineView::followArrow(int way) {
  if (const auto end = arrowEnd(way)) {
    context_.selectItem(*end);
  }
}

std::optional<Selection::Item> TimelineView::launchEnd() const {
  const Selection& chosen = context_.current();
  return chosen.item ? other_end(*context_.run()->ranks[chosen.item->rank], *chosen.item)
                     : std::nullopt;
}

void TimelineView::goToLaunch() {
  const auto end = launchEnd();
  if (!end) {
    return;
  }
  context_.selectItem(*end);
  reveal(*context_.itemInterval());
}

Nanoseconds TimelineView::markedTime() const {
  const auto item = context_.itemInterval();
  return scene_.cursor              ? *scene_.cursor
         : context_.current().range ? context_.current().range->start
         : item                     ? item->start
                                    : scene_.axis.toTime(scene_.axis.width() / 2.0);
}

std::vector<Bookmark>::iterator TimelineView::bookmarkNear(Nanoseconds time) {
  std::vector<Bookmark>& marks = scene_.bookmarks;
  return std::find_if(marks.begin(), marks.end(), [&](const Bookmark& m) {
    return std::abs(scene_.axis.toPixel(m.time) - scene_.axis.toPixel(time)) < kMarkPixels;
  });
}

std::optional<Bookmark> TimelineView::bookmarkAt(Nanoseconds time) {
  const auto near = bookmarkNear(time);
  return near == scene_.bookmarks.end() ? std::nullopt : std::optional(*near);
}

void TimelineView::toggleBookmark(Nanoseconds time) {
  const auto near = bookmarkNear(time);
  if (near == scene_.bookmarks.end()) {
    setBookmark(time, {});
    return;
  }
  scene_.bookmarks.erase(near);
  viewport()->update();
  emit bookmarksChanged();
}

void TimelineView::setBookmark(Nanoseconds time, const QString& note) {
  std::vector<Bookmark>& marks = scene_.bookmarks;
  const auto near = bookmarkNear(time);
  const QString text = note.isEmpty() ? timeText(near == marks.end() ? time : near->time,
                                                 scene_.axis.nanosecondsPerPixel())
                                      : note;
  if (near != marks.end()) {
    near->note = text;
  } else {
    marks.push_back({time, text});
    std::sort(marks.begin(), marks.end(),
              [](const Bookmark& a, const Bookmark& b) { return a.time < b.time; });
  }
  viewport()->update();
  emit bookmarksChanged();
}

std::optional<Nanoseconds> TimelineView::nextBookmark(int way) const {
  const analysis::Interval view = scene_.axis.view();
  const Nanoseconds middle = view.start + view.length() / 2;
  std::optional<Nanoseconds> best;
  for (const Bookmark& mark : scene_.bookmarks) {
    const bool beyond = way > 0 ? mark.time > middle + 1 : mark.time < middle - 1;
    if (beyond && (!best || (way > 0) == (mark.time < *best))) {
      best = mark.time;
    }
  }
  return best;
}

void TimelineView::jumpToBookmark(int way) {
  if (const auto time = nextBookmark(way)) {
    const Nanoseconds length = scene_.axis.view().length();
    scene_.axis.setView({*time - length / 2, *time - length / 2 + length});
    moved();
  }
}

std::optional<TimelineView::LaneAt> TimelineView::chosenLane() const {
  if (context_.run() == nullptr || hovered_lane_) {
    return hovered_lane_;
  }
  const std::optional<Selection::Item>& item = context_.current().item;
  const auto where = item ? scene_.place(*item) : std::nullopt;
  return where ? std::optional(LaneAt{item->rank, lane_name(scene_.lane(item->rank, where->lane))})
               : std::nullopt;
}

void TimelineView::setHoveredLane(const std::optional<LaneAt>& lane) {
  const bool changed = lane.has_value() != hovered_lane_.has_value();
  hovered_lane_ = lane;
  if (changed) {
    emit laneUnderPointer();
  }
}

bool TimelineView::isPinned(const LaneAt& lane) const {
  return scene_.arrangement().isPinned({context_.run()->ranks[lane.rank]->figures.rank, lane.name});
}

void TimelineView::arrange(const LaneArrangement& arrangement) {
  if (arrangement == scene_.arrangement()) {
    return;
  }
  scene_.arrange(arrangement);
  updateScrollBars();
  viewport()->update();
  emit arranged();
}

void TimelineView::togglePin(const LaneAt& lane) {
  LaneArrangement next = scene_.arrangement();
  next.togglePin({context_.run()->ranks[lane.rank]->figures.rank, lane.name});
  arrange(next);
}

void TimelineView::toggleHidden(const QString& lane) {
  LaneArrangement next = scene_.arrangement();
  next.toggleHidden(lane);
  arrange(next);
}

void TimelineView::moveLane(const LaneAt& lane, int way) {
  LaneArrangement next = scene_.arrangement();
  if (next.move(lane.name, way, lane_names(*context_.run()->ranks[lane.rank], next.nested))) {
    arrange(next);
  }
}

void TimelineView::toggleNested() {
  LaneArrangement next = scene_.arrangement();
  next.nested = !next.nested;
  arrange(next);
}

}  // namespace shardlens::gui
