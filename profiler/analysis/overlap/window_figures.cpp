#include "profiler/analysis/overlap/window_figures.h"

#include <algorithm>

#include "profiler/analysis/overlap/bandwidth.h"

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
  own_exposed();
  std::map<std::optional<CollectiveKind>, std::vector<Interval>> kinds;
  for (const Collective& c : timeline.collectives) {
    kinds[c.kind].push_back(c.when);
  }
  for (auto& [kind, intervals] : kinds) {
    kinds_[kind] = union_of(std::move(intervals));
  }
}

void Partition::own_exposed() {
  std::optional<Nanoseconds> covered;  // all exposed time before this is assigned
  for (uint32_t i = 0; i < timeline_.collectives.size(); ++i) {  // by start
    first_owned_.push_back(owned_.size());
    const Interval& when = timeline_.collectives[i].when;
    const Nanoseconds start = std::max(when.start, covered.value_or(when.start));
    if (start < when.end) {
      for (const Interval& each : clip(exposed_comm_, {start, when.end})) {
        owned_.push_back({each, i});
      }
      covered = when.end;
    }
  }
  first_owned_.push_back(owned_.size());
}

IntervalSet Partition::exposed(size_t i) const {
  IntervalSet out;
  for (size_t k = first_owned_[i]; k < first_owned_[i + 1]; ++k) {
    out.push_back(owned_[k].when);
  }
  return out;
}

IntervalSet Partition::exposed(size_t i, const IntervalSet& window) const {
  IntervalSet out;
  for (size_t k = first_owned_[i]; k < first_owned_[i + 1]; ++k) {
    const IntervalSet within = clip(window, owned_[k].when);
    out.insert(out.end(), within.begin(), within.end());
  }
  return out;
}

WindowFigures Partition::figures(const IntervalSet& window) const {
  WindowFigures f;
  f.compute = length_in(timeline_.compute, window);
  f.comm = length_in(timeline_.communication, window);
  f.overlap = length_in(overlap_, window);
  f.exposed_comm = length_in(exposed_comm_, window);
  f.exposed_copy = length_in(exposed_copy_, window);
  f.idle = length_of(window) - f.compute - f.exposed_comm - f.exposed_copy;
  const auto of = [&f](const std::optional<CollectiveKind>& kind) -> KindFigures& {
    return kind ? f.collectives[*kind] : f.unknown;
  };
  std::map<std::optional<CollectiveKind>, Transfers> transfers;
  const auto& collectives = timeline_.collectives;
  for (const Interval& each : window) {
    auto c = std::partition_point(collectives.begin(), collectives.end(),
                                  [&](const Collective& x) { return x.when.start < each.start; });
    for (; c != collectives.end() && c->when.start < each.end; ++c) {
      KindFigures& k = of(c->kind);
      ++k.count;
      k.bytes += c->bytes;
      if (c->transfer) {
        ++k.matched;
        k.transfer += *c->transfer;
        k.wait += c->when.length() - *c->transfer;
      }
      transfers[c->kind].add(*c);
    }
    auto owned = std::partition_point(owned_.begin(), owned_.end(),
                                      [&](const Owned& o) { return o.when.end <= each.start; });
    for (; owned != owned_.end() && owned->when.start < each.end; ++owned) {
      of(collectives[owned->collective].kind).exposed +=
          std::min(owned->when.end, each.end) - std::max(owned->when.start, each.start);
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
