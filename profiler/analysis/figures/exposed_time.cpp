#include "profiler/analysis/figures/exposed_time.h"

#include <algorithm>

#include "profiler/analysis/events/near_search.h"

namespace shardlens::analysis {

Partition::Partition(const Timeline& timeline) : timeline_(timeline) {
  overlap_ = intersect(timeline.communication, timeline.compute);
  exposed_comm_ = subtract(timeline.communication, timeline.compute);
  exposed_copy_ = subtract(subtract(timeline.copy, timeline.compute), timeline.communication);
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
  size_t next = 0;                     // the first interval that ends after that
  first_owned_.reserve(timeline_.collectives.size() + 1);
  owned_.reserve(timeline_.collectives.size() + exposed_comm_.size());
  for (uint32_t i = 0; i < timeline_.collectives.size(); ++i) {  // by start
    first_owned_.push_back(owned_.size());
    const Interval& when = timeline_.collectives[i].when;
    const Nanoseconds start = std::max(when.start, covered.value_or(when.start));
    if (start < when.end) {
      next = partition_near(exposed_comm_, next,
                            [&](const Interval& each) { return each.end <= start; });
      for (size_t k = next; k < exposed_comm_.size() && exposed_comm_[k].start < when.end; ++k) {
        const Interval& each = exposed_comm_[k];
        owned_.push_back({{std::max(each.start, start), std::min(each.end, when.end)}, i});
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

Nanoseconds Partition::exposed_length(size_t i, const IntervalSet& window) const {
  Nanoseconds sum = 0;
  for (size_t k = first_owned_[i]; k < first_owned_[i + 1]; ++k) {
    sum += length_within(window, owned_[k].when);
  }
  return sum;
}

IntervalSet Partition::idle(const IntervalSet& window) const {
  return subtract(subtract(subtract(window, timeline_.compute), exposed_comm_), exposed_copy_);
}

}  // namespace shardlens::analysis
