#include "profiler/analysis/figures.h"

#include <algorithm>

#include "profiler/analysis/bandwidth.h"

namespace shardlens::analysis {
namespace {

Nanoseconds length_in(const IntervalSet& set, const IntervalSet& window) {
  Nanoseconds sum = 0;
  for (const Interval& each : window) {
    sum += length_within(set, each);
  }
  return sum;
}

// Sums for the bandwidths of one kind.
struct Transfers {
  Bytes bytes = 0;
  double bus_bytes = 0;
  Nanoseconds time = 0, bus_time = 0;

  void add(const Collective& c) {
    if (c.bytes == 0 || !c.kind) {
      return;
    }
    const Nanoseconds took = c.transfer.value_or(c.when.length());
    bytes += c.bytes;
    time += took;
    if (const auto factor = bus_factor(*c.kind, c.ranks)) {
      bus_bytes += static_cast<double>(c.bytes) * *factor;
      bus_time += took;
    }
  }
};

}  // namespace

Partition::Partition(const Timeline& timeline) : timeline_(timeline) {
  overlap_ = intersect(timeline.communication, timeline.compute);
  exposed_comm_ = subtract(timeline.communication, timeline.compute);
  exposed_copy_ = subtract(timeline.copy, unite(timeline.compute, timeline.communication));
  exposed_.resize(timeline.collectives.size());
  std::map<std::optional<CollectiveKind>, std::vector<Interval>> kinds;
  std::optional<Nanoseconds> covered;  // every exposed instant before it is someone's
  for (size_t i = 0; i < timeline.collectives.size(); ++i) {  // by start
    const Collective& c = timeline.collectives[i];
    kinds[c.kind].push_back(c.when);
    const Nanoseconds start = std::max(c.when.start, covered.value_or(c.when.start));
    if (start < c.when.end) {
      // Not intersect(): that is linear in the whole set for each collective.
      auto it = std::upper_bound(exposed_comm_.begin(), exposed_comm_.end(), start,
                                 [](Nanoseconds t, const Interval& e) { return t < e.end; });
      for (; it != exposed_comm_.end() && it->start < c.when.end; ++it) {
        exposed_[i].push_back({std::max(it->start, start), std::min(it->end, c.when.end)});
      }
      covered = c.when.end;
    }
  }
  for (auto& [kind, intervals] : kinds) {
    kinds_[kind] = union_of(std::move(intervals));
  }
}

IntervalSet Partition::exposed(size_t i, const IntervalSet& window) const {
  return intersect(exposed_[i], window);
}

Figures Partition::figures(const IntervalSet& window) const {
  Figures f;
  f.span = length_of(window);
  f.compute = length_in(timeline_.compute, window);
  f.comm = length_in(timeline_.communication, window);
  f.overlap = length_in(overlap_, window);
  f.exposed_comm = length_in(exposed_comm_, window);
  f.exposed_copy = length_in(exposed_copy_, window);
  f.idle = f.span - f.compute - f.exposed_comm - f.exposed_copy;
  const auto of = [&f](const std::optional<CollectiveKind>& kind) -> KindFigures& {
    return kind ? f.collectives[*kind] : f.unknown;
  };
  std::map<std::optional<CollectiveKind>, Transfers> transfers;
  for (size_t i = 0; i < timeline_.collectives.size(); ++i) {
    const Collective& c = timeline_.collectives[i];
    const bool starts_here = contains(window, c.when.start);
    const Nanoseconds exposed = length_of(this->exposed(i, window));
    if (starts_here || exposed > 0) {
      KindFigures& k = of(c.kind);
      k.count += starts_here ? 1 : 0;
      k.bytes += starts_here ? c.bytes : 0;
      k.exposed += exposed;
      if (starts_here && c.transfer) {
        ++k.matched;
        k.transfer += *c.transfer;
        k.wait += c.when.length() - *c.transfer;
      }
      if (starts_here) {
        transfers[c.kind].add(c);
      }
    }
  }
  for (const auto& [kind, sums] : transfers) {
    of(kind).algbw = gigabytes_per_second(static_cast<double>(sums.bytes), sums.time);
    of(kind).busbw = gigabytes_per_second(sums.bus_bytes, sums.bus_time);
  }
  for (const auto& [kind, set] : kinds_) {
    const Nanoseconds busy = length_in(set, window);
    if (busy > 0) {
      of(kind).busy = busy;
    }
  }
  return f;
}

}  // namespace shardlens::analysis
