#include "profiler/analysis/overlap/unit_work.h"

#include <algorithm>
#include <optional>
#include <tuple>

namespace shardlens::analysis {
namespace {

using trace::Event;
using trace::Trace;

// One kernel, copy or leaf operator.
struct Item {
  Interval when;
  uint32_t track;  // the host thread that launched it
  Nanoseconds launched;
  Nature nature;
  Owner owner;
};

std::vector<Item> items_of(const Trace& trace, const Timeline& timeline) {
  std::vector<Item> items;
  const auto add = [&](const DeviceEvent& each) {
    if (each.nature == Nature::kCommunication || each.launch == trace::kNoIndex) {
      return;
    }
    const Event &event = trace.events[each.event], &launch = trace.events[each.launch];
    items.push_back({{event.start, event.end()},
                     launch.track,
                     launch.start,
                     each.nature,
                     owner_of(trace, timeline, each)});
  };
  for (const DeviceEvent& each : timeline.device ? timeline.device_events : timeline.host_events) {
    add(each);
  }
  std::stable_sort(items.begin(), items.end(),
                   [](const Item& a, const Item& b) { return a.when.start < b.when.start; });
  return items;
}

// The copy-outs of the log, to distinguish them from other copies.
class CopyOuts {
 public:
  explicit CopyOuts(const FsdpLog& log) {
    for (const FsdpEvent& e : log.events) {
      if (e.call == FsdpCall::kCopyOut) {
        ranges_.push_back(&e);
      }
    }
  }
  [[nodiscard]] const FsdpEvent* around(uint32_t track, Nanoseconds instant) const {
    const auto after =
        std::upper_bound(ranges_.begin(), ranges_.end(), instant,
                         [](Nanoseconds t, const FsdpEvent* e) { return t < e->when.start; });
    if (after == ranges_.begin()) {
      return nullptr;
    }
    const FsdpEvent* e = *std::prev(after);
    return instant < e->when.end && e->track == track ? e : nullptr;
  }

 private:
  std::vector<const FsdpEvent*> ranges_;
};

class Collector {
 public:
  Collector(const Trace& trace, const Timeline& timeline)
      : trace_(trace),
        timeline_(timeline),
        copy_outs_(timeline.fsdp),
        exposed_copies_(subtract(timeline.copy, unite(timeline.compute, timeline.communication))) {}

  UnitWork run() {
    for (const Item& item : items_of(trace_, timeline_)) {
      add(item);
    }
    for (auto& [key, span] : open_) {
      close(span);
    }
    for (auto& [key, work] : out_.by_owner) {
      work.compute = intersect(union_of(std::move(work.compute)), timeline_.compute);
      work.exposed_copy = intersect(union_of(std::move(work.exposed_copy)), exposed_copies_);
    }
    std::stable_sort(
        out_.spans.begin(), out_.spans.end(),
        [](const WorkSpan& a, const WorkSpan& b) { return a.when.start < b.when.start; });
    return std::move(out_);
  }

 private:
  // Index of the section's part, and the kind: events with the same key form one span.
  using Key = std::tuple<size_t, WorkSpan::Kind>;
  struct Open {
    WorkSpan span;
    UnionBuilder busy;
  };

  void add(const Item& item) {
    Owner owner = item.owner;
    auto kind = item.nature == Nature::kCompute ? WorkSpan::Kind::kCompute : WorkSpan::Kind::kCopy;
    if (item.nature == Nature::kCopy) {
      if (const FsdpEvent* out = copy_outs_.around(item.track, item.launched)) {
        kind = WorkSpan::Kind::kCopyOut;
        owner = {out->backward ? Section::kBackward : Section::kForward, out->unit};
      } else if (const FsdpEvent* call = timeline_.fsdp.collective_at(item.track, item.launched)) {
        owner = {call->backward ? Section::kBackward : Section::kForward, call->unit};
      }
    }
    Work& work = out_.by_owner[{owner.section, owner.unit}];
    std::optional<Nanoseconds>& covered =
        item.nature == Nature::kCompute ? compute_covered_ : copy_covered_;
    const Nanoseconds start = std::max(item.when.start, covered.value_or(item.when.start));
    if (start < item.when.end) {
      (item.nature == Nature::kCompute ? work.compute : work.exposed_copy)
          .push_back({start, item.when.end});
      covered = item.when.end;
    }
    if (owner.section == Section::kNone) {
      return;
    }
    const auto& parts = timeline_.sections.parts();
    const auto after =
        std::upper_bound(parts.begin(), parts.end(), item.launched,
                         [](Nanoseconds t, const Sections::Part& p) { return t < p.when.start; });
    const Key key{static_cast<size_t>(after - parts.begin()), kind};
    auto [it, fresh] = open_.try_emplace(key);
    Open& open = it->second;
    if (!fresh && !(open.span.owner == owner)) {
      close(open);
      open = {};
      fresh = true;
    }
    if (fresh) {
      open.span = {kind, owner, item.when, 0, 0, item.launched};
    }
    open.span.when.end = std::max(open.span.when.end, item.when.end);
    open.span.launched = std::min(open.span.launched, item.launched);
    open.busy.add(item.when);
  }

  void close(Open& open) {
    const IntervalSet busy = open.busy.take();
    open.span.busy = length_of(busy);
    if (open.span.kind != WorkSpan::Kind::kCompute) {
      for (const Interval& each : busy) {
        open.span.exposed += length_within(exposed_copies_, each);
      }
    }
    out_.spans.push_back(open.span);
  }

  const Trace& trace_;
  const Timeline& timeline_;
  CopyOuts copy_outs_;
  IntervalSet exposed_copies_;
  UnitWork out_;
  std::map<Key, Open> open_;
  std::optional<Nanoseconds> compute_covered_, copy_covered_;
};

}  // namespace

UnitWork unit_work(const Trace& trace, const Timeline& timeline) {
  return timeline.sections.empty() ? UnitWork() : Collector(trace, timeline).run();
}

}  // namespace shardlens::analysis
