#pragma once

#include <span>
#include <vector>

#include "core/base/units.h"

namespace shardlens::analysis {

// [start, end) in nanoseconds.
struct Interval {
  Nanoseconds start = 0, end = 0;
  [[nodiscard]] Nanoseconds length() const { return end - start; }
  friend bool operator==(const Interval&, const Interval&) = default;
};

// A set of instants as sorted intervals that neither touch nor overlap; empty intervals hold
// nothing. Complexity: union_of sorts; the binary operations are linear in both.
using IntervalSet = std::vector<Interval>;

[[nodiscard]] IntervalSet union_of(std::vector<Interval> intervals);  // any order, overlapping
[[nodiscard]] IntervalSet unite(const IntervalSet& a, const IntervalSet& b);
[[nodiscard]] IntervalSet intersect(const IntervalSet& a, const IntervalSet& b);
[[nodiscard]] IntervalSet subtract(const IntervalSet& a, const IntervalSet& b);
[[nodiscard]] Nanoseconds length_of(const IntervalSet& set);
[[nodiscard]] bool contains(const IntervalSet& set, Nanoseconds instant);
// |set ∩ [start, end)|
[[nodiscard]] Nanoseconds length_within(const IntervalSet& set, const Interval& window);

}  // namespace shardlens::analysis
