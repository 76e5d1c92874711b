#include "profiler/analysis/units/unit_work.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "profiler/analysis/events/near_search.h"
#include "profiler/analysis/events/sort_runs.h"

namespace shardlens::analysis {
namespace {

// Calls visit(event) for each kernel, copy or leaf operator whose launch is in the trace, by start.
template <class Visit>
void visit_by_start(const Timeline& timeline, Visit visit) {
  const auto& events = timeline.device ? timeline.device_events : timeline.host_events;
  const auto earlier = [](const DeviceEvent& a, const DeviceEvent& b) {
    return a.when.start < b.when.start;
  };
  std::vector<uint32_t> order;
  // Host events are by thread.
  if (!timeline.device && !std::is_sorted(events.begin(), events.end(), earlier)) {
    order.resize(events.size());
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return earlier(events[a], events[b]); });
  }
  for (size_t i = 0; i < events.size(); ++i) {
    const DeviceEvent& each = events[order.empty() ? i : order[i]];
    if (each.nature != Nature::kCommunication && each.launch != trace::kNoIndex) {
      visit(each);
    }
  }
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
  Collector(const Timeline& timeline, const IntervalSet& exposed_copies, const IntervalSet& window)
      : timeline_(timeline),
        copy_outs_(timeline.fsdp),
        exposed_copies_(exposed_copies),
        window_(window),
        exposed_in_window_(intersect(exposed_copies, window)) {}

  UnitWork run() {
    visit_by_start(timeline_, [&](const DeviceEvent& each) { add(each); });
    for (const auto& [key, open] : open_) {
      out_.spans.push_back(open.span);
    }
    sort_runs(out_.spans,
              [](const WorkSpan& a, const WorkSpan& b) { return a.when.start < b.when.start; });
    return std::move(out_);
  }

 private:
  // Index of the section's part, and the kind: events with the same key form one span.
  using Key = std::tuple<size_t, WorkSpan::Kind>;
  struct Open {
    bool is_new = true;  // no event yet
    WorkSpan span;
    Nanoseconds covered = 0;  // the latest end of its events
  };
  void add(const DeviceEvent& each) {
    const Place& place = timeline_.place(each);
    Owner owner = place.owner;
    auto kind = each.nature == Nature::kCompute ? WorkSpan::Kind::kCompute : WorkSpan::Kind::kCopy;
    if (each.nature == Nature::kCopy) {
      if (const FsdpEvent* out = copy_outs_.around(place.thread, each.launched)) {
        kind = WorkSpan::Kind::kCopyOut;
        owner = {out->backward ? Section::kBackward : Section::kForward, out->unit};
      } else if (const FsdpEvent* call =
                     timeline_.fsdp.collective_at(place.thread, each.launched, near_call_)) {
        owner = {call->backward ? Section::kBackward : Section::kForward, call->unit};
      }
    }
    if (latest_work_ == nullptr || !(owner == latest_owner_)) {
      latest_work_ = &out_.by_owner[{owner.section, owner.unit}];
      latest_owner_ = owner;
    }
    const bool computes = each.nature == Nature::kCompute;
    std::optional<Nanoseconds>& covered = computes ? compute_covered_ : copy_covered_;
    const Interval own{std::max(each.when.start, covered.value_or(each.when.start)), each.when.end};
    if (own.length() > 0) {
      if (computes) {
        latest_work_->compute += window_.length_within(own);
      } else {
        latest_work_->exposed_copy += length_within(exposed_in_window_, own, near_copy_);
      }
      covered = own.end;
    }
    if (owner.section == Section::kNone) {
      return;
    }
    near_part_ =
        partition_near(timeline_.sections.parts(), near_part_,
                       [&](const Sections::Part& p) { return p.when.start <= each.launched; });
    const Key key{near_part_, kind};
    if (latest_open_ == open_.end() || latest_open_->first != key) {
      latest_open_ = open_.try_emplace(key).first;
    }
    Open& open = latest_open_->second;
    bool fresh = open.is_new;
    if (!fresh && !(open.span.owner == owner)) {
      out_.spans.push_back(open.span);
      open = {};
      fresh = true;
    }
    if (fresh) {
      open.is_new = false;
      open.span = {kind, owner, each.when, 0, 0, each.launched, place.basis};
      open.covered = each.when.start;
    }
    open.span.when.end = std::max(open.span.when.end, each.when.end);
    open.span.launched = std::min(open.span.launched, each.launched);
    // Events come by start, so what is not covered by those before is behind their latest end.
    const Interval uncovered{std::max(each.when.start, open.covered), each.when.end};
    if (uncovered.length() > 0) {
      open.span.busy += uncovered.length();
      if (kind != WorkSpan::Kind::kCompute) {
        open.span.exposed += length_within(exposed_copies_, uncovered, near_exposed_);
      }
      open.covered = each.when.end;
    }
  }

  const Timeline& timeline_;
  CopyOuts copy_outs_;
  const IntervalSet& exposed_copies_;
  NearSet window_;
  const IntervalSet exposed_in_window_;
  UnitWork out_;
  std::map<Key, Open> open_;
  // The owner of the event before, which most events share.
  Owner latest_owner_;
  Work* latest_work_ = nullptr;
  std::map<Key, Open>::iterator latest_open_ = open_.end();
  size_t near_part_ = 0, near_call_ = 0, near_exposed_ = 0, near_copy_ = 0;
  std::optional<Nanoseconds> compute_covered_, copy_covered_;
};

}  // namespace

UnitWork unit_work(const Timeline& timeline,
                   const Partition& partition,
                   const IntervalSet& window) {
  return timeline.sections.empty() && !timeline.captured && !timeline.rewritten
             ? UnitWork()
             : Collector(timeline, partition.exposed_copy(), window).run();
}

}  // namespace shardlens::analysis
