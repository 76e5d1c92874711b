#include "profiler/analysis/figures/window_figures.h"

#include <algorithm>

#include "profiler/analysis/figures/bandwidth.h"
#include "profiler/analysis/figures/exposed_time.h"
#include "profiler/analysis/figures/rank_collectives.h"

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

  template <typename Row>
  void add(const Row& c) {
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

KindFigures& of_kind(WindowFigures& figures, const std::optional<CollectiveKind>& kind) {
  return kind ? figures.collectives[*kind] : figures.unknown;
}

// Calls action(collective) for those that start within `window`.
template <typename Row, typename Each>
void for_each_within(const std::vector<Row>& collectives,
                     const IntervalSet& window,
                     const Each& action) {
  for (const Interval& each : window) {
    auto c = std::partition_point(collectives.begin(), collectives.end(),
                                  [&](const Row& x) { return x.when.start < each.start; });
    for (; c != collectives.end() && c->when.start < each.end; ++c) {
      action(*c);
    }
  }
}

}  // namespace

template <typename Row>
void set_transfers(const std::vector<Row>& collectives,
                   const IntervalSet& window,
                   WindowFigures& figures) {
  std::map<std::optional<CollectiveKind>, Transfers> transfers;
  const auto clear = [](KindFigures& k) {
    k.matched = 0;
    k.transfer = k.wait = 0;
    k.algbw = k.busbw = std::nullopt;
  };
  clear(figures.unknown);
  for (auto& [kind, k] : figures.collectives) {
    clear(k);
  }
  for_each_within(collectives, window, [&](const Row& c) {
    if (c.transfer) {
      KindFigures& k = of_kind(figures, c.kind);
      ++k.matched;
      k.transfer += *c.transfer;
      k.wait += c.when.length() - *c.transfer;
    }
    transfers[c.kind].add(c);
  });
  for (const auto& [kind, sums] : transfers) {
    KindFigures& k = of_kind(figures, kind);
    k.algbw = gigabytes_per_second(static_cast<double>(sums.bytes), sums.time);
    k.busbw = gigabytes_per_second(sums.bus_bytes, sums.bus_time);
  }
}

template void set_transfers(const std::vector<Collective>&, const IntervalSet&, WindowFigures&);
template void set_transfers(const std::vector<RankCollective>&, const IntervalSet&, WindowFigures&);

WindowFigures Partition::figures(const IntervalSet& window) const {
  WindowFigures f;
  f.compute = length_in(timeline_.compute, window);
  f.comm = length_in(timeline_.communication, window);
  f.overlap = length_in(overlap_, window);
  f.exposed_comm = length_in(exposed_comm_, window);
  f.exposed_copy = length_in(exposed_copy_, window);
  f.idle = length_of(window) - f.compute - f.exposed_comm - f.exposed_copy;
  const auto& collectives = timeline_.collectives;
  for_each_within(collectives, window, [&](const Collective& c) {
    KindFigures& k = of_kind(f, c.kind);
    ++k.count;
    k.bytes += c.bytes;
  });
  set_transfers(collectives, window, f);
  for (const Interval& each : window) {
    auto owned = std::partition_point(owned_.begin(), owned_.end(),
                                      [&](const Owned& o) { return o.when.end <= each.start; });
    for (; owned != owned_.end() && owned->when.start < each.end; ++owned) {
      of_kind(f, collectives[owned->collective].kind).exposed +=
          std::min(owned->when.end, each.end) - std::max(owned->when.start, each.start);
    }
  }
  for (const auto& [kind, set] : kinds_) {
    const Nanoseconds busy = length_in(set, window);
    if (busy > 0) {
      of_kind(f, kind).busy = busy;
    }
  }
  return f;
}

}  // namespace shardlens::analysis
