#include "gui/model/run/selection_context.h"

#include <algorithm>
#include <utility>

namespace shardlens::gui {

using analysis::Interval;

bool is_collective(const Selection::Item& item) {
  return item.source == Lane::Source::kCollectives || item.source == Lane::Source::kExposed;
}

Interval interval_of(const RankData& rank, const Selection::Item& item) {
  switch (item.source) {
    case Lane::Source::kEvents:
      return {rank.trace.events[item.ref].start, rank.trace.events[item.ref].end()};
    case Lane::Source::kSections:
      return rank.timeline.sections.parts()[item.ref].when;
    case Lane::Source::kResidency:
      return rank.residencies[item.ref].when;
    case Lane::Source::kIdle:
      return rank.idle()[item.ref].when;
    case Lane::Source::kRegions:
      return rank.regions[item.ref].when;
    case Lane::Source::kCollectives:
    case Lane::Source::kExposed:
      break;
  }
  return rank.timeline.collectives[item.ref].when;
}

std::optional<std::string> unit_of(const RankData& rank, const Selection::Item& item) {
  switch (item.source) {
    case Lane::Source::kEvents: {
      const std::string owner = rank.owner_of_event(item.ref);
      return owner.empty() ? std::nullopt
                           : std::optional(owner == "(root)" ? std::string() : owner);
    }
    case Lane::Source::kCollectives:
    case Lane::Source::kExposed:
      return rank.owner_of(item.ref);
    case Lane::Source::kResidency:
      return rank.residencies[item.ref].unit;
    case Lane::Source::kIdle:
    case Lane::Source::kRegions:
      return std::nullopt;
    case Lane::Source::kSections:
      break;
  }
  const analysis::Owner& part = rank.timeline.sections.parts()[item.ref].owner;
  return part.unit == kNoUnit ? std::nullopt
                              : std::optional(rank.timeline.fsdp.units[part.unit].fqn);
}

const RankData* SelectionContext::rank() const {
  return run_ != nullptr && current_.rank < run_->ranks.size() ? run_->ranks[current_.rank].get()
                                                               : nullptr;
}

void SelectionContext::setRun(RunPointer run) {
  run_ = std::move(run);
  current_ = {};
  history_ = {current_};
  at_ = 0;
  emit runChanged();
  emit changed();
}

bool SelectionContext::exists(const Selection& selection) const {
  const auto has = [this](size_t rank) { return run_ != nullptr && rank < run_->ranks.size(); };
  return selection == Selection{} ||
         (has(selection.rank) && (!selection.item || has(selection.item->rank)) &&
          (!selection.step || *selection.step < run_->ranks[selection.rank]->figures.steps.size()));
}

void SelectionContext::select(const Selection& selection) {
  if (selection == current_ || !exists(selection)) {
    return;
  }
  current_ = selection;
  history_.resize(at_ + 1);
  history_.push_back(selection);
  if (history_.size() > kHistory) {
    history_.erase(history_.begin());
  }
  at_ = history_.size() - 1;
  emit changed();
}

void SelectionContext::selectRank(size_t rank) {
  Selection next = current_;
  if (next.rank != rank) {
    next = {};
    next.rank = rank;
    next.unit = current_.unit;
    next.range = current_.range;
  }
  select(next);
}

void SelectionContext::selectStep(std::optional<size_t> step) {
  Selection next = current_;
  next.step = step;
  next.range.reset();
  select(next);
}

void SelectionContext::selectUnit(std::optional<std::string> unit) {
  Selection next = current_;
  next.unit = std::move(unit);
  next.item.reset();
  select(next);
}

void SelectionContext::selectItem(const Selection::Item& item) {
  if (run_ == nullptr || item.rank >= run_->ranks.size()) {
    return;
  }
  Selection next = current_;
  if (next.rank != item.rank) {
    next.step.reset();
  }
  next.rank = item.rank;
  next.item = item;
  next.unit = unit_of(*run_->ranks[item.rank], item);
  select(next);
}

void SelectionContext::selectRange(std::optional<Interval> range) {
  Selection next = current_;
  next.range = range;
  select(next);
}

void SelectionContext::measureItem() {
  const std::optional<Interval> item = itemInterval();
  if (item) {
    const Interval range = current_.range.value_or(*item);
    selectRange(Interval{std::min(range.start, item->start), std::max(range.end, item->end)});
  }
}

void SelectionContext::clear() {
  Selection next;
  next.rank = current_.rank;
  next.step = current_.step;
  select(next);
}

bool SelectionContext::canClear() const {
  return current_.unit || current_.item || current_.range;
}

analysis::IntervalSet SelectionContext::window() const {
  return rank() == nullptr ? analysis::IntervalSet() : windowOf(current_.rank);
}

analysis::IntervalSet SelectionContext::windowOf(size_t rank) const {
  const RankData& of = *run_->ranks[rank];
  if (current_.range) {
    return analysis::clip(of.timeline.span, run_->own(of, *current_.range));
  }
  const std::vector<analysis::StepAnalysis>& steps = this->rank()->figures.steps;
  if (!current_.step || *current_.step >= steps.size()) {
    return of.timeline.span;
  }
  const int64_t number = steps[*current_.step].step;
  const auto same = std::ranges::find(of.figures.steps, number, &analysis::StepAnalysis::step);
  return same == of.figures.steps.end() ? analysis::IntervalSet()
                                        : analysis::IntervalSet{same->window};
}

std::optional<Interval> SelectionContext::itemInterval() const {
  if (run_ == nullptr || !current_.item) {
    return std::nullopt;
  }
  const RankData& of = *run_->ranks[current_.item->rank];
  return run_->shown(of, interval_of(of, *current_.item));
}

void SelectionContext::back() {
  if (canGoBack()) {
    current_ = history_[--at_];
    emit changed();
  }
}

void SelectionContext::forward() {
  if (canGoForward()) {
    current_ = history_[++at_];
    emit changed();
  }
}

}  // namespace shardlens::gui
