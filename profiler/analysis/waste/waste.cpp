#include "profiler/analysis/waste/waste.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "profiler/analysis/events/names.h"

namespace shardlens::analysis {
namespace {

using trace::Category;
using trace::Event;
using trace::kNoIndex;
using trace::Trace;

class WasteFinder {
 public:
  WasteFinder(const Trace& trace,
              const Timeline& timeline,
              const Partition& partition,
              const Dependencies& dependencies,
              const IntervalSet& window)
      : trace_(trace),
        timeline_(timeline),
        partition_(partition),
        dependencies_(dependencies),
        window_(window) {}

  std::vector<Waste> run(const FrozenViews* frozen_views) {
    const FsdpSource source = timeline_.fsdp.source;
    if (source == FsdpSource::kFsdp2 || source == FsdpSource::kShardlens) {
      find_gathers();
      find_casts();
    }
    find_late_buckets();
    find_host_waits();
    if (frozen_views != nullptr) {
      add(WasteKind::kFrozenViews, "", frozen_views->lost);
      found_[{WasteKind::kFrozenViews, ""}].count = frozen_views->backwards;
    }
    std::vector<Waste> out;
    for (auto& [key, waste] : found_) {
      out.push_back(std::move(waste));
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const Waste& a, const Waste& b) { return a.lost > b.lost; });
    return out;
  }

 private:
  struct Launch {
    Nanoseconds time = 0;
    const DeviceEvent* event = nullptr;
  };

  void add(WasteKind kind, const std::string& where, Nanoseconds lost) {
    Waste& waste = found_[{kind, where}];
    waste.kind = kind;
    waste.where = where;
    ++waste.count;
    waste.lost += lost;
  }

  [[nodiscard]] const std::string& unit_name(uint32_t unit) const {
    return timeline_.fsdp.units[unit].fqn;
  }

  // A gather as it ran on the communicator.
  struct Ran {
    bool known = false;
    Nanoseconds exposed = 0;
    bool within = false;  // starts within the window
  };

  // By event of the log.
  [[nodiscard]] std::vector<Ran> gathers_that_ran() const {
    const std::vector<FsdpEvent>& events = timeline_.fsdp.events;
    std::vector<Ran> out(events.size());
    size_t near = 0;
    for (size_t i = 0; i < timeline_.collectives.size(); ++i) {
      const Collective& c = timeline_.collectives[i];
      if (c.issuer == kNoIndex || c.kind != CollectiveKind::kAllGather) {
        continue;
      }
      const Event& issuer = trace_.events[c.issuer];
      const FsdpEvent* call = timeline_.fsdp.collective_at(issuer.track, issuer.start, near);
      if (call != nullptr && call->call == FsdpCall::kUnshard) {
        Ran& ran = out[static_cast<size_t>(call - events.data())];
        ran.known = true;
        ran.exposed += length_of(partition_.exposed(i, window_));
        ran.within = contains(window_, c.when.start);
      }
    }
    return out;
  }

  // [Note: Iterations] Forwards up to a backward, and that backward, are one iteration. A forward
  // of a unit outside the root's also begins a pass of the log, so passes alone do not tell.
  void find_gathers() {
    const std::vector<FsdpEvent>& events = timeline_.fsdp.events;
    const std::vector<Ran> ran = gathers_that_ran();
    const std::vector<bool> copied_out = copied_out_next();
    std::optional<uint32_t> root;
    for (uint32_t u = 0; u < timeline_.fsdp.units.size(); ++u) {
      root = timeline_.fsdp.units[u].fqn.empty() ? std::optional(u) : root;
    }
    find_unused(ran);
    size_t first = 0;
    bool backward = false;
    for (size_t i = 0; i <= events.size(); ++i) {
      const bool forward_again = i < events.size() && backward &&
                                 events[i].call == FsdpCall::kPreForward && !events[i].backward;
      if (i < events.size() && !forward_again) {
        backward = backward || events[i].call == FsdpCall::kPreBackward;
        continue;
      }
      if (backward && root) {
        count_gathers(ran, copied_out, first, i, *root);
      }
      first = i;
      backward = false;
    }
  }

  void count_gathers(const std::vector<Ran>& ran,
                     const std::vector<bool>& copied_out,
                     size_t first,
                     size_t last,
                     uint32_t root) {
    const std::vector<FsdpEvent>& events = timeline_.fsdp.events;
    int64_t forwards = 0;  // of the root
    size_t end = first;    // what is gathered after the last hook is for the next iteration
    for (size_t i = first; i < last; ++i) {
      forwards +=
          events[i].call == FsdpCall::kPreForward && !events[i].backward && events[i].unit == root
              ? 1
              : 0;
      end = events[i].call == FsdpCall::kUnshard || events[i].call == FsdpCall::kCopyOut ? end : i;
    }
    if (forwards != 1) {
      return;  // cut off at the trace's edge, or several forwards for one backward
    }
    std::map<std::pair<uint32_t, bool>, int64_t> seen;
    for (size_t i = first; i < end; ++i) {
      const FsdpEvent& e = events[i];
      if (e.call == FsdpCall::kUnshard && copied_out[i] && ++seen[{e.unit, e.backward}] > 1 &&
          ran[i].known && ran[i].within) {
        add(WasteKind::kGatheredAgain, unit_name(e.unit), ran[i].exposed);
      }
    }
  }

  // By event of the log: whether the next gather or copy-out of its unit is a copy-out, in the same
  // forward or backward. A later one may be of a gather that the trace has lost.
  [[nodiscard]] std::vector<bool> copied_out_next() const {
    const std::vector<FsdpEvent>& events = timeline_.fsdp.events;
    std::vector<bool> out(events.size());
    std::vector<const FsdpEvent*> next(timeline_.fsdp.units.size(), nullptr);
    for (size_t i = events.size(); i-- > 0;) {
      const FsdpEvent& e = events[i];
      const FsdpEvent* after = next[e.unit];
      out[i] = after != nullptr && after->call == FsdpCall::kCopyOut &&
               after->forward == e.forward && after->backward == e.backward;
      if (e.call == FsdpCall::kUnshard || e.call == FsdpCall::kCopyOut) {
        next[e.unit] = &e;
      }
    }
    return out;
  }

  // A unit that is gathered again although its last result was never copied out. Only for units
  // that the trace shows to copy out.
  void find_unused(const std::vector<Ran>& ran) {
    const std::vector<FsdpEvent>& events = timeline_.fsdp.events;
    std::vector<bool> copied_out(timeline_.fsdp.units.size());
    for (const FsdpEvent& e : events) {
      if (e.call == FsdpCall::kCopyOut) {
        copied_out[e.unit] = true;
      }
    }
    // By unit: the event that gathered it, if it was not copied out since.
    std::vector<std::optional<size_t>> pending(timeline_.fsdp.units.size());
    for (size_t i = 0; i < events.size(); ++i) {
      const FsdpEvent& e = events[i];
      // The end of a forward or backward shows that the unit was used, even where the trace has
      // lost the copy-out.
      if (e.call == FsdpCall::kCopyOut || e.call == FsdpCall::kPostForward ||
          e.call == FsdpCall::kPostBackward || e.call == FsdpCall::kReduce) {
        pending[e.unit] = std::nullopt;
      } else if (e.call == FsdpCall::kUnshard) {
        if (pending[e.unit]) {
          const Ran& before = ran[*pending[e.unit]];
          if (before.known && before.within && copied_out[e.unit]) {
            add(WasteKind::kUnusedGather, unit_name(e.unit), before.exposed);
          }
        }
        pending[e.unit] = i;
      }
    }
  }

  // Casts of parameters for an all-gather, after the first one since the optimizer ran.
  void find_casts() {
    const std::vector<FsdpEvent>& events = timeline_.fsdp.events;
    std::vector<Nanoseconds> optimizers;
    std::vector<uint32_t> casts, copies;
    timeline_.lists.for_annotations_named(
        trace_, [](std::string_view n) { return n.starts_with("Optimizer."); },
        [&](uint32_t i) { optimizers.push_back(trace_.events[i].start); });
    if (optimizers.empty()) {
      return;
    }
    timeline_.lists.for_operators_named(
        trace_,
        [](std::string_view n) { return n == "aten::_to_copy" || n == "aten::_foreach_copy_"; },
        [&](uint32_t i) { casts.push_back(i); });
    timeline_.lists.for_operators_named(
        trace_, [](std::string_view n) { return n == "fsdp::all_gather_copy_in"; },
        [&](uint32_t i) { copies.push_back(i); });
    if (casts.empty()) {
      return;
    }
    std::sort(optimizers.begin(), optimizers.end());
    std::map<size_t, Nanoseconds> copied;  // event of the log → start of its copy-in
    for (const uint32_t copy : copies) {
      const Event& event = trace_.events[copy];
      const FsdpEvent* call = timeline_.fsdp.collective_at(event.track, event.start);
      if (call != nullptr && call->call == FsdpCall::kUnshard) {
        copied.emplace(static_cast<size_t>(call - events.data()), event.start);
      }
    }
    std::map<size_t, std::vector<uint32_t>> by_gather;  // event of the log → casts
    for (const uint32_t cast : casts) {
      const Event& event = trace_.events[cast];
      const FsdpEvent* call = timeline_.fsdp.collective_at(event.track, event.start);
      if (call == nullptr || call->call != FsdpCall::kUnshard) {
        continue;
      }
      // FSDP2 casts before it copies into the all-gather's buffer, and that copy uses the same
      // operators.
      const auto gather = static_cast<size_t>(call - events.data());
      const auto copy = copied.find(gather);
      if (copy != copied.end() ? event.end() <= copy->second
                               : trace_.name(event) == "aten::_to_copy") {
        by_gather[gather].push_back(cast);
      }
    }
    std::set<std::pair<std::ptrdiff_t, uint32_t>> cast_before;
    for (const auto& [gather, list] : by_gather) {  // by start
      const FsdpEvent& e = events[gather];
      const std::ptrdiff_t update =
          std::lower_bound(optimizers.begin(), optimizers.end(), e.when.start) - optimizers.begin();
      if (cast_before.insert({update, e.unit}).second) {
        continue;
      }
      Nanoseconds lost = 0;
      for (const uint32_t cast : list) {
        lost += cast_time(trace_.events[cast]);
      }
      if (lost > 0) {
        add(WasteKind::kCastAgain, unit_name(e.unit), lost);
      }
    }
  }

  // The exposed time of a cast: of the operator, or of the kernels that it launched.
  [[nodiscard]] Nanoseconds cast_time(const Event& cast) const {
    const IntervalSet& exposed = partition_.exposed_copy();
    if (!timeline_.device) {
      return shared_length(clip(exposed, {cast.start, cast.end()}), window_);
    }
    Nanoseconds sum = 0;
    for (const DeviceEvent* each : launched_within(cast)) {
      const Event& event = trace_.events[each->event];
      if (event.category == Category::kKernel) {  // a copy from the host casts nothing
        sum += shared_length(clip(exposed, {event.start, event.end()}), window_);
      }
    }
    return sum;
  }

  void index_launches() const {
    if (!launches_.empty()) {
      return;
    }
    launches_.resize(trace_.tracks.size());
    for (const DeviceEvent& each : timeline_.device_events) {
      if (each.launch != kNoIndex) {
        launches_[timeline_.place(each).thread].push_back({each.launched, &each});
      }
    }
    for (auto& thread : launches_) {
      std::stable_sort(thread.begin(), thread.end(),
                       [](const Launch& a, const Launch& b) { return a.time < b.time; });
    }
  }

  [[nodiscard]] std::vector<const DeviceEvent*> launched_within(const Event& range) const {
    index_launches();
    const std::vector<Launch>& thread = launches_[range.track];
    std::vector<const DeviceEvent*> out;
    for (auto it = std::lower_bound(thread.begin(), thread.end(), range.start,
                                    [](const Launch&l, Nanoseconds t) { return l.time < t; });
         it != thread.end() && it->time < range.end(); ++it) {
      out.push_back(it->event);
    }
    return out;
  }

  // A bucket of DDP is reduced when its last gradient is complete. If in most backwards that one
  // came much later than the others, and nothing was communicated meanwhile, the others could have
  // been reduced then.
  void find_late_buckets() {
    std::map<std::pair<size_t, size_t>, size_t> reductions;  // (pass, bucket) → collective
    for (size_t i = 0; i < timeline_.collectives.size(); ++i) {
      const Collective& c = timeline_.collectives[i];
      if (c.issuer != kNoIndex && c.part == UnitPart::kAllReduce) {
        const Event& issuer = trace_.events[c.issuer];
        if (const auto place = timeline_.ddp.bucket_at(issuer.track, issuer.start)) {
          reductions.emplace(std::pair(place->pass, place->bucket), i);
        }
      }
    }
    std::map<std::string, int64_t> reduced;  // how often
    for (const auto& [place, i] : reductions) {
      const std::string name = timeline_.ddp.name_of({place.first, place.second});
      ++reduced[name];
      const Nanoseconds lost =
          lost_by_waiting(timeline_.ddp.passes[place.first].buckets[place.second], i);
      if (lost > 0) {
        add(WasteKind::kLateBucket, name, lost);
      }
    }
    std::erase_if(found_, [&](const auto& each) {
      const Waste& waste = each.second;
      return waste.kind == WasteKind::kLateBucket && 2 * waste.count <= reduced[waste.where];
    });
  }

  // A gradient of a bucket. What its copy into the bucket took shows its size where the trace does
  // not have it.
  struct Gradient {
    Nanoseconds complete = 0;
    double size = 0;
  };

  // What the bucket's all-reduce lost because the bucket waited for its last gradient; 0: it did
  // not wait, or lost less than a quarter of its time.
  [[nodiscard]] Nanoseconds lost_by_waiting(const DdpBucket& bucket, size_t reduction) const {
    const std::vector<Gradient> gradients = gradients_of(bucket);
    if (gradients.size() < 3) {
      return 0;
    }
    const Nanoseconds first = gradients.front().complete, last = gradients.back().complete;
    const Interval wait{gradients[gradients.size() - 2].complete, last};
    const Nanoseconds idle = wait.length() - length_within(timeline_.communication, wait),
                      transfer = timeline_.collectives[reduction].when.length();
    if (2 * idle <= last - first || idle <= transfer) {
      return 0;
    }
    double sum = 0;
    for (const Gradient& each : gradients) {
      sum += each.size;
    }
    // The last gradient itself cannot be reduced earlier.
    const double others = sum > 0 ? 1 - gradients.back().size / sum : 0;
    const Nanoseconds lost =
        std::min(length_of(partition_.exposed(reduction, window_)),
                 static_cast<Nanoseconds>(others * static_cast<double>(transfer)));
    return 4 * lost < transfer ? 0 : lost;
  }

  // In order of completion. On a device, a gradient is complete when the last kernel that its
  // thread had launched has ended.
  [[nodiscard]] std::vector<Gradient> gradients_of(const DdpBucket& bucket) const {
    std::vector<Gradient> out;
    const bool sizes = std::all_of(bucket.gradients.begin(), bucket.gradients.end(),
                                   [](const DdpGradient& each) { return each.numel >= 0; });
    for (const DdpGradient& each : bucket.gradients) {
      Interval copy = each.when;
      if (timeline_.device) {
        const Launch* launch = last_launch(bucket.track, each.when.end);
        if (launch == nullptr || (!sizes && launch->time < each.when.start)) {
          return {};
        }
        const Event& kernel = trace_.events[launch->event->event];
        copy = {kernel.start, kernel.end()};
      }
      out.push_back({copy.end, static_cast<double>(sizes ? each.numel : copy.length())});
    }
    std::sort(out.begin(), out.end(),
              [](const Gradient& a, const Gradient& b) { return a.complete < b.complete; });
    return out;
  }

  // Of the last kernel, copy or memset that the thread launched before `instant`; nullptr: none.
  [[nodiscard]] const Launch* last_launch(uint32_t track, Nanoseconds instant) const {
    index_launches();
    const std::vector<Launch>& thread = launches_[track];
    auto it = std::lower_bound(thread.begin(), thread.end(), instant,
                               [](const Launch& l, Nanoseconds t) { return l.time < t; });
    while (it != thread.begin()) {
      --it;
      if (it->event->nature != Nature::kCommunication) {
        return &*it;
      }
    }
    return nullptr;
  }

  // The device ran out of work because the host waited for it before launching more.
  void find_host_waits() {
    if (!timeline_.device || dependencies_.host_waits().empty() || trace_.metadata.simulated()) {
      return;
    }
    index_launches();
    const std::map<size_t, std::string> names = wait_names();
    const IntervalSet busy =
        unite(unite(timeline_.compute, timeline_.communication), timeline_.copy);
    // Steps by start, each with the latest end of those up to it.
    std::vector<Interval> steps;
    for (const Step& step : timeline_.steps) {
      steps.push_back(step.host);
    }
    std::sort(steps.begin(), steps.end(),
              [](const Interval& a, const Interval& b) { return a.start < b.start; });
    for (size_t i = 1; i < steps.size(); ++i) {
      steps[i].end = std::max(steps[i].end, steps[i - 1].end);
    }
    // By launch: the last wait before it.
    std::map<std::pair<uint32_t, Nanoseconds>, size_t> before;
    const auto& waits = dependencies_.host_waits();  // by end
    for (size_t w = 0; w < waits.size(); ++w) {
      const std::vector<Launch>& thread = launches_[waits[w].track];
      const auto next = std::lower_bound(thread.begin(), thread.end(), waits[w].when.end,
                                         [](const Launch& l, Nanoseconds t) { return l.time < t; });
      if (next != thread.end() && in_step(steps, waits[w].when, next->time) &&
          timeline_.fsdp.collective_at(waits[w].track, waits[w].when.start) == nullptr) {
        before[{waits[w].track, next->time}] = w;
      }
    }
    for (const auto& [launch, w] : before) {
      const Event* first = nullptr;  // that started of what was launched then
      const std::vector<Launch>& thread = launches_[launch.first];
      for (auto it = std::lower_bound(thread.begin(), thread.end(), launch.second,
                                      [](const Launch&l, Nanoseconds t) { return l.time < t; });
           it != thread.end() && it->time == launch.second; ++it) {
        const Event& event = trace_.events[it->event->event];
        first = first == nullptr || event.start < first->start ? &event : first;
      }
      const Interval until{waits[w].when.start, first->start};
      if (until.length() <= 0) {
        continue;
      }
      // Only the idle time that ends with this launch.
      const auto after = std::partition_point(
          busy.begin(), busy.end(), [&](const Interval& each) { return each.start < until.end; });
      const Nanoseconds begin =
          after == busy.begin() ? until.start : std::max(until.start, std::prev(after)->end);
      if (begin >= until.end || until.end <= waits[w].when.end) {
        continue;
      }
      const Nanoseconds lost = shared_length({{begin, until.end}}, window_);
      if (lost > 0) {
        add(WasteKind::kHostSync, names.at(w), lost);
      }
    }
  }

  // Whether the wait and the next launch are in one step; without steps, anything is.
  static bool in_step(const std::vector<Interval>& steps,
                      const Interval& wait,
                      Nanoseconds launch) {
    const auto after = std::partition_point(
        steps.begin(), steps.end(), [&](const Interval& s) { return s.start <= wait.start; });
    return steps.empty() || (after != steps.begin() && launch < std::prev(after)->end);
  }

  // By position in host_waits(): "cudaStreamSynchronize in aten::item".
  [[nodiscard]] std::map<size_t, std::string> wait_names() const {
    std::map<std::pair<uint32_t, Nanoseconds>, size_t> by_start;
    const auto& waits = dependencies_.host_waits();
    for (size_t w = 0; w < waits.size(); ++w) {
      by_start[{waits[w].track, waits[w].when.start}] = w;
    }
    std::map<size_t, std::string> out;
    timeline_.lists.for_calls_named(trace_, is_host_wait, [&](uint32_t i) {
      const Event& event = trace_.events[i];
      const auto found = by_start.find({event.track, event.start});
      if (found != by_start.end() && waits[found->second].when.end == event.end()) {
        out[found->second] = std::string(trace_.name(event));
      }
    });
    const std::map<size_t, uint32_t> around = longest_around(by_start);
    for (size_t w = 0; w < waits.size(); ++w) {
      const auto found = around.find(w);
      out[w] += found == around.end()
                    ? ""
                    : fmt::format(" in {}", trace_.name(trace_.events[found->second]));
    }
    return out;
  }

  // By wait: the longest operator around its start; of equally long ones the first in the file.
  [[nodiscard]] std::map<size_t, uint32_t> longest_around(
      const std::map<std::pair<uint32_t, Nanoseconds>, size_t>& by_start) const {
    std::vector<uint32_t> operators;
    timeline_.lists.for_operators_named(
        trace_, [](std::string_view n) { return n.starts_with("aten::"); },
        [&](uint32_t i) {
          const Event& event = trace_.events[i];
          const auto wait = by_start.lower_bound({event.track, event.start});
          if (event.duration > 0 && wait != by_start.end() && wait->first.first == event.track &&
              wait->first.second < event.end()) {
            operators.push_back(i);
          }
        });
    // The longest first, so that each wait is visited once.
    std::stable_sort(operators.begin(), operators.end(), [&](uint32_t a, uint32_t b) {
      return trace_.events[a].duration > trace_.events[b].duration;
    });
    auto left = by_start;
    std::map<size_t, uint32_t> around;
    for (const uint32_t i : operators) {
      const Event& event = trace_.events[i];
      auto it = left.lower_bound({event.track, event.start});
      while (it != left.end() && it->first.first == event.track && it->first.second < event.end()) {
        around[it->second] = i;
        it = left.erase(it);
      }
    }
    return around;
  }

  const Trace& trace_;
  const Timeline& timeline_;
  const Partition& partition_;
  const Dependencies& dependencies_;
  const IntervalSet& window_;
  std::map<std::pair<WasteKind, std::string>, Waste> found_;
  mutable std::vector<std::vector<Launch>> launches_;  // by host thread, by time
};

}  // namespace

std::string_view name_of(WasteKind kind) {
  constexpr std::array<std::string_view, kWasteKindCount> kNames{
      "gathered_again", "unused_gather", "cast_again", "frozen_views", "late_bucket", "host_sync"};
  static_assert(!kNames.back().empty());  // an enumerator without a name does not compile
  return kNames[static_cast<size_t>(kind)];
}

std::string_view explanation_of(WasteKind kind) {
  switch (kind) {
    case WasteKind::kGatheredAgain:
      return "gathered more than once in one forward or backward: call the module once, or keep "
             "its "
             "parameters after forward";
    case WasteKind::kUnusedGather:
      return "gathered, but nothing waited for the parameters: do not prefetch it";
    case WasteKind::kCastAgain:
      return "the same parameters were cast again for an all-gather: keep them after forward, or "
             "keep a copy in low precision";
    case WasteKind::kFrozenViews:
      return "gradients were reduced only after the whole backward: create the parameter views in "
             "each forward";
    case WasteKind::kLateBucket:
      return "a bucket waited for its last gradient while nothing was communicated: a smaller "
             "bucket_cap_mb, or another order of the parameters";
    case WasteKind::kHostSync:
      return "the host waited for the device, which then had nothing to do: avoid .item(), prints "
             "of tensors and other waits within a step";
  }
  return "";
}

std::vector<Waste> find_waste(const Trace& trace,
                              const Timeline& timeline,
                              const Partition& partition,
                              const Dependencies& dependencies,
                              const FrozenViews* frozen_views,
                              const IntervalSet& window) {
  return WasteFinder(trace, timeline, partition, dependencies, window).run(frozen_views);
}

}  // namespace shardlens::analysis
