#include "profiler/analysis/events/intervals.h"

#include <algorithm>
#include <utility>

#include "profiler/analysis/events/near_search.h"

namespace shardlens::analysis {

namespace {

bool starts_before(const Interval& a, const Interval& b) {
  return a.start < b.start;
}

// Adds an interval that starts after those of `out`, or within the last of them.
void extend(IntervalSet& out, const Interval& i) {
  if (!out.empty() && i.start <= out.back().end) {
    out.back().end = std::max(out.back().end, i.end);
  } else {
    out.push_back(i);
  }
}

}  // namespace

IntervalSet union_of(std::vector<Interval> intervals) {
  std::erase_if(intervals, [](const Interval& i) { return i.end <= i.start; });
  if (!std::is_sorted(intervals.begin(), intervals.end(), starts_before)) {
    std::sort(intervals.begin(), intervals.end(), starts_before);
  }
  IntervalSet out;
  for (const Interval& i : intervals) {
    extend(out, i);
  }
  return out;
}

IntervalSet unite(const IntervalSet& a, const IntervalSet& b) {
  IntervalSet out;
  auto one = a.begin(), other = b.begin();
  while (one != a.end() || other != b.end()) {
    const bool first = other == b.end() || (one != a.end() && !starts_before(*other, *one));
    extend(out, first ? *one++ : *other++);
  }
  return out;
}

namespace {

// Calls visit(interval) for each interval of a ∩ b.
template <class Visit>
void visit_both(const IntervalSet& a, const IntervalSet& b, Visit visit) {
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i].end <= b[j].start) {
      i = partition_near(a, i, [&](const Interval& each) { return each.end <= b[j].start; });
      continue;
    }
    if (b[j].end <= a[i].start) {
      j = partition_near(b, j, [&](const Interval& each) { return each.end <= a[i].start; });
      continue;
    }
    const Nanoseconds start = std::max(a[i].start, b[j].start), end = std::min(a[i].end, b[j].end);
    if (start < end) {
      visit(Interval{start, end});
    }
    a[i].end < b[j].end ? ++i : ++j;
  }
}

}  // namespace

IntervalSet intersect(const IntervalSet& a, const IntervalSet& b) {
  IntervalSet out;
  visit_both(a, b, [&](const Interval& each) { out.push_back(each); });
  return out;
}

Nanoseconds shared_length(const IntervalSet& a, const IntervalSet& b) {
  Nanoseconds sum = 0;
  visit_both(a, b, [&](const Interval& each) { sum += each.length(); });
  return sum;
}

IntervalSet subtract(const IntervalSet& a, const IntervalSet& b) {
  IntervalSet out;
  size_t j = 0;
  for (const Interval& whole : a) {
    Nanoseconds start = whole.start;
    j = partition_near(b, j, [&](const Interval& each) { return each.end <= start; });
    for (size_t k = j; k < b.size() && b[k].start < whole.end; ++k) {
      if (b[k].start > start) {
        out.push_back({start, b[k].start});
      }
      start = std::max(start, b[k].end);
    }
    if (start < whole.end) {
      out.push_back({start, whole.end});
    }
  }
  return out;
}

Nanoseconds length_of(const IntervalSet& set) {
  Nanoseconds sum = 0;
  for (const Interval& i : set) {
    sum += i.length();
  }
  return sum;
}

bool contains(const IntervalSet& set, Nanoseconds instant) {
  const auto after = std::upper_bound(set.begin(), set.end(), instant,
                                      [](Nanoseconds t, const Interval& i) { return t < i.start; });
  return after != set.begin() && instant < std::prev(after)->end;
}

bool contains(const IntervalSet& set, Nanoseconds instant, size_t& near) {
  near = partition_near(set, near, [&](const Interval& i) { return i.end <= instant; });
  return near < set.size() && set[near].start <= instant;
}

IntervalSet clip(const IntervalSet& set, const Interval& window) {
  IntervalSet out;
  clip(set, window, out);
  return out;
}

void clip(const IntervalSet& set, const Interval& window, IntervalSet& out) {
  auto it = std::upper_bound(set.begin(), set.end(), window.start,
                             [](Nanoseconds t, const Interval& i) { return t < i.end; });
  for (; it != set.end() && it->start < window.end && window.start < window.end; ++it) {
    out.push_back({std::max(it->start, window.start), std::min(it->end, window.end)});
  }
}

Nanoseconds length_within(const IntervalSet& set, const Interval& window) {
  if (set.size() == 1) {  // as the span of a trace usually is
    return std::max<Nanoseconds>(
        0, std::min(set[0].end, window.end) - std::max(set[0].start, window.start));
  }
  size_t near = set.size() / 2;
  return length_within(set, window, near);
}

Nanoseconds length_within(const IntervalSet& set, const Interval& window, size_t& near) {
  near = partition_near(set, near, [&](const Interval& i) { return i.end <= window.start; });
  Nanoseconds sum = 0;
  for (size_t i = near; i < set.size() && set[i].start < window.end; ++i) {
    sum += std::min(set[i].end, window.end) - std::max(set[i].start, window.start);
  }
  return sum;
}

}  // namespace shardlens::analysis
