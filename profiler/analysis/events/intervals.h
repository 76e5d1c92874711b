#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "core/base/units.h"

namespace shardlens::analysis {

// [start, end) in nanoseconds.
struct Interval {
  Nanoseconds start = 0, end = 0;
  [[nodiscard]] Nanoseconds length() const { return end - start; }
  [[nodiscard]] bool contains(Nanoseconds instant) const {
    return start <= instant && instant < end;
  }
  friend bool operator==(const Interval&, const Interval&) = default;
};

// A set of instants as sorted intervals that neither touch nor overlap; empty intervals contain
// nothing. Complexity: union_of sorts; unite is linear in both sets; the others of two sets are
// linear in the smaller one and in the result.
using IntervalSet = std::vector<Interval>;

// May be in any order and overlap.
[[nodiscard]] IntervalSet union_of(std::vector<Interval> intervals);

// A union built interval by interval. It needs little memory if the intervals are nearly sorted,
// because an interval that touches the one before is merged at once.
class UnionBuilder {
 public:
  void reserve(size_t intervals) { intervals_.reserve(intervals); }
  void add(const Interval& interval) {
    if (interval.end <= interval.start) {
      return;
    }
    if (!intervals_.empty() && interval.start >= intervals_.back().start &&
        interval.start <= intervals_.back().end) {
      intervals_.back().end =
          interval.end > intervals_.back().end ? interval.end : intervals_.back().end;
      return;
    }
    sorted_ = sorted_ && (intervals_.empty() || interval.start > intervals_.back().end);
    intervals_.push_back(interval);
  }
  [[nodiscard]] IntervalSet take() {
    return sorted_ ? std::move(intervals_) : union_of(std::move(intervals_));
  }

 private:
  std::vector<Interval> intervals_;
  bool sorted_ = true;
};

[[nodiscard]] IntervalSet unite(const IntervalSet& a, const IntervalSet& b);
[[nodiscard]] IntervalSet intersect(const IntervalSet& a, const IntervalSet& b);
[[nodiscard]] Nanoseconds shared_length(const IntervalSet& a, const IntervalSet& b);  // |a ∩ b|
[[nodiscard]] IntervalSet subtract(const IntervalSet& a, const IntervalSet& b);
[[nodiscard]] Nanoseconds length_of(const IntervalSet& set);
[[nodiscard]] bool contains(const IntervalSet& set, Nanoseconds instant);
// The same; `near`: see length_within().
[[nodiscard]] bool contains(const IntervalSet& set, Nanoseconds instant, size_t& near);
// set ∩ window. Complexity: logarithmic in the set, linear in the result.
[[nodiscard]] IntervalSet clip(const IntervalSet& set, const Interval& window);
// The same, appended to `out`.
void clip(const IntervalSet& set, const Interval& window, IntervalSet& out);
// |set ∩ [start, end)|
[[nodiscard]] Nanoseconds length_within(const IntervalSet& set, const Interval& window);
// The same; `near`: a place that is kept from one call to the next, which is fast if the windows
// are near each other.
[[nodiscard]] Nanoseconds length_within(const IntervalSet& set,
                                        const Interval& window,
                                        size_t& near);

// Asks a set about many instants, of which most lie in the interval of the one before.
class NearSet {
 public:
  explicit NearSet(const IntervalSet& set) : set_(set) {}
  [[nodiscard]] bool contains(Nanoseconds instant) {
    return is_near(instant) || analysis::contains(set_, instant, near_);
  }
  // |set ∩ [start, end)|
  [[nodiscard]] Nanoseconds length_within(const Interval& when) {
    if (is_near(when.start) && when.end <= set_[near_].end) {
      return when.length();
    }
    return analysis::length_within(set_, when, near_);
  }

 private:
  [[nodiscard]] bool is_near(Nanoseconds instant) const {
    return near_ < set_.size() && instant >= set_[near_].start && instant < set_[near_].end;
  }
  const IntervalSet& set_;
  size_t near_ = 0;  // index of an interval
};

}  // namespace shardlens::analysis
