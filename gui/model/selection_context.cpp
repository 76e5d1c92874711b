#include "gui/model/selection_context.h"

#include <algorithm>
#include <utility>

namespace shardlens::gui {

using analysis::Interval;

Interval interval_of(const RankData& rank, const Selection::Item& item) {
  switch (item.source) {
    case Lane::Source::kEvents:
      return {rank.trace.events[item.ref].start, rank.trace.events[item.ref].end()};
    case Lane::Source::kSections:
      return rank.timeline.sections.parts()[item.ref].when;
    case Lane::Source::kCollectives:
    case Lane::Source::kExposed:
      break;
  }
  return rank.timeline.collectives[item.ref].when;
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

void SelectionContext::select(const Selection& selection) {
  if (selection == current_) {
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
  Selection next = current_;
  if (next.rank != item.rank) {
    next.step.reset();
  }
  next.rank = item.rank;
  next.item = item;
  const RankData& of = *run_->ranks[item.rank];
  std::string owner;
  switch (item.source) {
    case Lane::Source::kEvents:
      owner = of.owner_of_event(item.ref);
      next.unit =
          owner.empty() ? std::nullopt : std::optional(owner == "(root)" ? std::string() : owner);
      break;
    case Lane::Source::kCollectives:
    case Lane::Source::kExposed:
      next.unit = of.owner_of(item.ref);
      break;
    case Lane::Source::kSections: {
      const analysis::Owner& part = of.timeline.sections.parts()[item.ref].owner;
      next.unit.reset();
      if (part.unit != kNoUnit) {
        next.unit = of.timeline.fsdp.units[part.unit].fqn;
      }
      break;
    }
  }
  select(next);
}

void SelectionContext::selectRange(std::optional<Interval> range) {
  Selection next = current_;
  next.range = range;
  select(next);
}

void SelectionContext::clear() {
  Selection next;
  next.rank = current_.rank;
  next.step = current_.step;
  select(next);
}

analysis::IntervalSet SelectionContext::window() const {
  const RankData* of = rank();
  if (of == nullptr) {
    return {};
  }
  if (current_.range) {
    return analysis::clip(of->timeline.span, run_->own(*of, *current_.range));
  }
  if (current_.step && *current_.step < of->figures.steps.size()) {
    return {of->figures.steps[*current_.step].window};
  }
  return of->timeline.span;
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
