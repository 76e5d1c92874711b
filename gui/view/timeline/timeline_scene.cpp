#include "gui/view/timeline/timeline_scene.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <tuple>

#include "gui/model/base/shown_text.h"
#include "gui/model/lanes/nested_operators.h"

namespace shardlens::gui {

using analysis::Interval;

namespace {

// FQN of the unit, "<section>", or a text that is neither for idle time and regions.
std::string owner_of(const RankData& rank, const Lane& lane, uint32_t ref) {
  switch (lane.source) {
    case Lane::Source::kCollectives:
    case Lane::Source::kExposed:
      return rank.owner_of(ref);
    case Lane::Source::kSections: {
      const analysis::Owner& owner = rank.timeline.sections.parts()[ref].owner;
      return owner.unit == kNoUnit ? "<" + std::string(name_of(owner.section)) + ">"
                                   : rank.timeline.fsdp.units[owner.unit].fqn;
    }
    case Lane::Source::kResidency:
      return rank.residencies[ref].unit;
    case Lane::Source::kIdle:
      return "<idle>";
    case Lane::Source::kRegions:
      return "<region>";
    case Lane::Source::kEvents:
      break;
  }
  const std::string owner = rank.owner_of_event(ref);
  return owner == "(root)" ? "" : owner;
}

}  // namespace

void TimelineScene::setRun(RunPointer run) {
  run_ = std::move(run);
  ghost_ = {};
  selection_ = {};
  launch_.reset();
  collapsed_.clear();
  nested_.clear();
  bookmarks.clear();
  dragged.reset();
  scroll = 0;
  if (run_ != nullptr) {
    for (size_t rank = 1; rank < run_->ranks.size() && run_->ranks.size() > 2; ++rank) {
      collapsed_.insert(rank);
    }
    axis.setBounds({0, std::max<Nanoseconds>(run_->duration, 1)});
  }
  highlights_.clear();
  relayout();
}

void TimelineScene::setGhost(Ghost ghost) {
  ghost_ = std::move(ghost);
  relayout();
}

void TimelineScene::setSelection(const Selection& selection) {
  if (selection.unit != selection_.unit) {
    highlights_.clear();
  }
  selection_ = selection;
  launch_ = run_ != nullptr && selection_.item
                ? launch_ends(*run_->ranks[selection_.item->rank], *selection_.item)
                : std::nullopt;
}

void TimelineScene::setSize(double width, double height) {
  width_ = width;
  height_ = height;
  axis.setWidth(static_cast<int>(std::max(1.0, width - kGutter)));
  relayout();
}

void TimelineScene::toggle(size_t rank) {
  if (!collapsed_.erase(rank)) {
    collapsed_.insert(rank);
  }
  relayout();
}

void TimelineScene::setCollapsed(const std::set<size_t>& ranks) {
  collapsed_ = ranks;
  relayout();
}

void TimelineScene::arrange(const LaneArrangement& arrangement) {
  arrangement_ = arrangement;
  highlights_.clear();
  relayout();
}

void TimelineScene::nest(size_t rank) {
  if (nested_.contains(rank)) {
    return;
  }
  const trace::Trace& trace = run_->ranks[rank]->trace;
  std::vector<Lane>& lanes = nested_[rank];
  for (NestedThread& thread : nested_operators(trace)) {
    const trace::Track& track = trace.tracks[thread.track];
    const QString name = track.name != trace::kEmptyString
                             ? shown_text(trace.strings.view(track.name))
                             : QObject::tr("thread %1").arg(track.tid);
    lanes.push_back({Kind::kHost, Lane::Source::kEvents, std::move(thread.depths), nullptr, name});
  }
}

void TimelineScene::relayout() {
  minimap_.reset();
  if (run_ == nullptr) {
    layout_ = {};
    return;
  }
  if (!arrangement_.nested) {
    nested_.clear();
  }
  for (size_t rank = 0; arrangement_.nested && rank < run_->ranks.size(); ++rank) {
    if (!collapsed_.contains(rank)) {
      nest(rank);
    }
  }
  layout_ = layout_of({*run_, collapsed_, arrangement_, nested_, ghost_}, height_ - kHeader);
}

const Lane& TimelineScene::lane(size_t rank, size_t index) const {
  const std::vector<Lane>& own = run_->ranks[rank]->lanes;
  return index < own.size() ? own[index] : nested_.at(rank)[index - own.size()];
}

DrawnRank TimelineScene::drawnOn(const Band& band) const {
  const bool ghost = band.kind == Band::Kind::kGhostLane || band.kind == Band::Kind::kGhostHeader;
  return {ghost ? *ghost_.run : *run_, ghost ? ghost_.data() : *run_->ranks[band.rank], axis,
          kGutter, ghost ? ghost_.start : 0};
}

std::optional<Interval> TimelineScene::ghostInterval() const {
  return ghost_.run == nullptr
             ? std::nullopt
             : std::optional(Interval{ghost_.start, ghost_.start + ghost_.run->duration});
}

QRectF TimelineScene::laneArea(const Band& band) const {
  return {kGutter, topOf(band), width_ - kGutter, band.height};
}

// The items of the row that belong to the selected unit, computed once per selection.
const LaneRow& TimelineScene::highlighted(const RankData& rank,
                                          size_t rank_index,
                                          size_t lane,
                                          size_t row) {
  const auto key = std::tuple(rank_index, lane, row);
  const auto found = highlights_.find(key);
  if (found != highlights_.end()) {
    return found->second;
  }
  const ItemTable& table = this->lane(rank_index, lane).rows[row].table();
  return highlights_.emplace(key, LaneRow(table, positionsOfUnit(rank, rank_index, lane, row)))
      .first->second;
}

std::vector<uint32_t> TimelineScene::positionsOfUnit(const RankData& rank,
                                                     size_t rank_index,
                                                     size_t lane,
                                                     size_t row) const {
  std::vector<uint32_t> out;
  const Lane& of = this->lane(rank_index, lane);
  const LaneItems items = of.rows[row].items();
  const std::span<const uint32_t> positions = of.rows[row].positions();
  if (of.thread.isEmpty()) {
    for (size_t i = 0; i < items.size(); ++i) {
      if (owner_of(rank, of, items[i].ref) == *selection_.unit) {
        out.push_back(positions[i]);
      }
    }
    return out;
  }
  // There are many nested operators, and all of a row are on one thread.
  const std::string section_name = *selection_.unit;
  size_t near = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const trace::Event& event = rank.trace.events[items[i].ref];
    const analysis::Owner owner = rank.timeline.sections.at(event.track, event.start, near);
    if (owner.unit != kNoUnit
            ? rank.timeline.fsdp.units[owner.unit].fqn == *selection_.unit
            : section_name.starts_with('<') &&
                  section_name == "<" + std::string(name_of(owner.section)) + ">") {
      out.push_back(positions[i]);
    }
  }
  return out;
}

std::optional<Interval> TimelineScene::unitInterval(const Interval& window) {
  if (run_ == nullptr || !selection_.unit || selection_.rank >= run_->ranks.size()) {
    return std::nullopt;
  }
  const RankData& rank = *run_->ranks[selection_.rank];
  std::optional<Interval> hull;
  for (size_t lane = 0; lane < rank.lanes.size(); ++lane) {
    for (size_t row = 0; row < rank.lanes[lane].rows.size(); ++row) {
      for (const LaneItem item : highlighted(rank, selection_.rank, lane, row).items()) {
        if (item.start >= window.start && item.start < window.end) {
          hull = hull ? Interval{std::min(hull->start, item.start), std::max(hull->end, item.end)}
                      : Interval{item.start, item.end};
        }
      }
    }
  }
  return hull ? std::optional(run_->shown(rank, *hull)) : std::nullopt;
}

std::vector<TimelineScene::Place> TimelineScene::places(const Selection::Item& item) const {
  std::vector<Place> out;
  const RankData& rank = *run_->ranks[item.rank];
  const Interval when = interval_of(rank, item);
  const auto nested = nested_.find(item.rank);
  const size_t lanes = rank.lanes.size() + (nested == nested_.end() ? 0 : nested->second.size());
  // Only collectives have parts that begin later than the item.
  const Nanoseconds last = item.source == Lane::Source::kExposed ? when.end - 1 : when.start;
  for (size_t lane = 0; lane < lanes; ++lane) {
    const Lane& of = this->lane(item.rank, lane);
    if (of.source != item.source ||
        (nested != nested_.end() && of.name == Lane::kOperators)) {  // not shown
      continue;
    }
    for (size_t row = 0; row < of.rows.size(); ++row) {
      const LaneItems items = of.rows[row].items();
      for (size_t i = of.rows[row].first_ending_after(when.start);
           i < items.size() && items[i].start <= last; ++i) {
        if (items[i].ref == item.ref) {
          out.push_back({lane, row, i});
        }
      }
    }
  }
  return out;
}

std::optional<TimelineScene::Place> TimelineScene::place(const Selection::Item& item) const {
  const std::vector<Place> all = places(item);
  return all.empty() ? std::nullopt : std::optional(all.front());
}

TimelineScene::Hit TimelineScene::hit(double x, double y) const {
  Hit out;
  if (run_ == nullptr || y < kHeader || x < 0) {
    return out;
  }
  if (const TimelineLayout::Band* band = layout_.at(y - kHeader, scroll)) {
    out.band = *band;
  }
  if (!out.band || x < kGutter ||
      (out.band->kind != Band::Kind::kLane && out.band->kind != Band::Kind::kGhostLane)) {
    return out;
  }
  out.ghost = out.band->kind == Band::Kind::kGhostLane;
  const DrawnRank drawn = drawnOn(*out.band);
  const Lane& lane =
      out.ghost ? drawn.rank.lanes[out.band->lane] : this->lane(out.band->rank, out.band->lane);
  const LaneRow& row = lane.rows[out.band->row];
  const auto own = [&](double pixel) {
    const Nanoseconds t = axis.toTime(pixel - kGutter) - drawn.shift;
    return drawn.run.own(drawn.rank, {t, t}).start;
  };
  const Nanoseconds from = own(std::floor(x)), to = std::max(own(std::floor(x) + 1), from + 1);
  const LaneItems items = row.items();
  size_t widest = items.size();
  Nanoseconds most = 0, busy = 0;
  for (size_t i = row.first_ending_after(from); i < items.size() && items[i].start < to; ++i) {
    const LaneItem item = items[i];
    const Nanoseconds inside = std::min(item.end, to) - std::max(item.start, from);
    busy += inside;
    ++out.merged;
    if (inside > most) {
      most = inside;
      widest = i;
    }
  }
  out.busy = static_cast<double>(busy) / static_cast<double>(to - from);
  if (widest < items.size() && (out.merged == 1 || 2 * most >= to - from)) {
    out.item = Selection::Item{out.band->rank, lane.source, items[widest].ref};
  }
  return out;
}

std::optional<size_t> TimelineScene::stepAt(double x, double y) const {
  if (run_ == nullptr || x < kGutter || y < kMinimap + kRuler || y >= kHeader) {
    return std::nullopt;
  }
  const RankData& rank = *run_->ranks[std::min(selection_.rank, run_->ranks.size() - 1)];
  const Nanoseconds time = axis.toTime(x - kGutter);
  for (size_t i = 0; i < rank.figures.steps.size(); ++i) {
    const Interval shown = run_->shown(rank, rank.figures.steps[i].window);
    if (time >= shown.start && time < shown.end) {
      return i;
    }
  }
  return std::nullopt;
}

Nanoseconds TimelineScene::snap(double x, double y, double reach) const {
  const Nanoseconds plain = axis.toTime(x - kGutter);
  if (run_ == nullptr) {
    return plain;
  }
  const Band* band = layout_.at(y - kHeader, scroll);
  Nanoseconds best = plain;
  double nearest = reach;
  const auto consider = [&](Nanoseconds shown) {
    const double distance = std::abs(axis.toPixel(shown) + kGutter - x);
    if (distance < nearest) {
      nearest = distance;
      best = shown;
    }
  };
  for (size_t r = 0; r < run_->ranks.size(); ++r) {
    const RankData& rank = *run_->ranks[r];
    for (const analysis::StepAnalysis& step : rank.figures.steps) {
      consider(run_->shown(rank, step.window).start);
      consider(run_->shown(rank, step.window).end);
    }
  }
  if (band != nullptr && band->kind == Band::Kind::kLane) {
    const RankData& rank = *run_->ranks[band->rank];
    const LaneRow& row = lane(band->rank, band->lane).rows[band->row];
    const Nanoseconds from = axis.toTime(x - kGutter - reach),
                      to = axis.toTime(x - kGutter + reach);
    const Interval own = run_->own(rank, {from, to});
    constexpr int kLooked = 200;  // if more are within reach, they are less than a pixel apart
    int looked = 0;
    const LaneItems items = row.items();
    for (size_t i = row.first_ending_after(own.start);
         i < items.size() && items[i].start <= own.end && looked < kLooked; ++i, ++looked) {
      const Interval shown = run_->shown(rank, {items[i].start, items[i].end});
      consider(shown.start);
      consider(shown.end);
    }
  }
  return best;
}

}  // namespace shardlens::gui
