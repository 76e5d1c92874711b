#include "profiler/analysis/figures/exposed_time.h"

#include <algorithm>

namespace shardlens::analysis {

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
    clip(window, owned_[k].when, out);
  }
  return out;
}

IntervalSet Partition::idle(const IntervalSet& window) const {
  return subtract(subtract(subtract(window, timeline_.compute), exposed_comm_), exposed_copy_);
}

}  // namespace shardlens::analysis
