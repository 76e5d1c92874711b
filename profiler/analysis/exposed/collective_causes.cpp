#include "profiler/analysis/exposed/collective_causes.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "profiler/analysis/events/near_search.h"
#include "profiler/analysis/events/sort_runs.h"

namespace shardlens::analysis {
namespace {

using schedule::Cause;

// An event starts at most so long after what it waited for; more needs another reason.
constexpr Nanoseconds kHandOver = 20'000;
// On the CPU, less compute than this part of a collective counts as none.
constexpr Nanoseconds kLeastShare = 20;

// Collects the proof, if it is wanted.
class Proof {
 public:
  Proof(const trace::Trace& trace, std::vector<CauseProof>* list) : trace_(trace), list_(list) {}
  void add(std::string_view what, uint32_t event, const Interval& when) const {
    if (list_ != nullptr) {
      list_->push_back(
          {what, event,
           event == trace::kNoIndex ? "" : std::string(trace_.name(trace_.events[event])), when});
    }
  }
  void add(std::string_view what, Nanoseconds instant) const {
    add(what, trace::kNoIndex, {instant, instant});
  }

 private:
  const trace::Trace& trace_;
  std::vector<CauseProof>* list_;
};

bool is_prefetched(const Collective& c) {
  return c.issued_by == Cause::kForwardPrefetch || c.issued_by == Cause::kBackwardPrefetch ||
         c.issued_by == Cause::kExplicitPrefetch;
}

bool at_least_half(Nanoseconds part, Nanoseconds whole) {
  return part >= whole - part;
}

// A late start counts only if the collective then took about as long as the transfer on the rank
// that came last: otherwise the clocks, or the matching, are wrong. It explains the exposed time if
// half of that was before it.
bool waited_for_peer(const RankCollective& c, const Exposure& exposure) {
  if (!c.last_start || *c.last_start <= c.when.start || *c.last_start >= c.when.end) {
    return false;
  }
  const Nanoseconds rest = c.when.end - *c.last_start;
  if (c.transfer && (rest > 2 * *c.transfer + kHandOver || 2 * rest + kHandOver < *c.transfer)) {
    return false;
  }
  return *c.last_start >= exposure.half;
}

// The part of the collective after the last rank had begun.
Interval own_part(const RankCollective& c) {
  return {std::clamp(c.last_start.value_or(c.when.start), c.when.start, c.when.end), c.when.end};
}

bool is_of_every_cause(const CauseProof& fact) {
  return fact.what == "issued" || fact.what == "ran" || fact.what == "needed";
}

}  // namespace

size_t step_of(const std::vector<Step>& steps, Nanoseconds instant) {
  const auto after =
      std::upper_bound(steps.begin(), steps.end(), instant,
                       [](Nanoseconds t, const Step& s) { return t < s.window.start; });
  if (after == steps.begin() || instant >= std::prev(after)->window.end) {
    return steps.size();
  }
  return static_cast<size_t>(after - steps.begin()) - 1;
}

size_t step_of(const Timeline& timeline,
               const std::optional<Nanoseconds>& issued,
               Nanoseconds start) {
  if (!timeline.device || !issued) {
    return step_of(timeline.steps, issued.value_or(start));
  }
  const auto& steps = timeline.steps;
  const auto after =
      std::upper_bound(steps.begin(), steps.end(), *issued,
                       [](Nanoseconds t, const Step& s) { return t < s.host.start; });
  return after == steps.begin() || *issued >= std::prev(after)->host.end
             ? steps.size()
             : static_cast<size_t>(after - steps.begin()) - 1;
}

ExposedCauses::ExposedCauses(const trace::Trace& trace,
                             const Timeline& timeline,
                             const FrozenViews* frozen_views,
                             const Dependencies* dependencies)
    : trace_(trace),
      timeline_(timeline),
      frozen_views_(frozen_views),
      dependencies_(dependencies),
      compute_(timeline.compute) {
  if (timeline.device && dependencies == nullptr) {
    own_dependencies_ = std::make_unique<Dependencies>(trace, timeline);
    dependencies_ = own_dependencies_.get();
  }
  find_communicators();
  find_ends_of_steps();
  if (timeline.device) {
    find_launches();
    queue_.emplace(timeline, *dependencies_, device_of_);
  }
}

// An all-gather of a unit's parameters: those of other parallelism are UnitPart::kOther.
bool ExposedCauses::is_unshard(const Collective& c) const {
  return c.unit && c.kind == CollectiveKind::kAllGather && c.part != UnitPart::kOther;
}

bool ExposedCauses::is_reduction(const Collective& c) const {
  return c.unit && (c.part == UnitPart::kReduceScatter || c.part == UnitPart::kAllReduce);
}

void ExposedCauses::find_communicators() {
  communicator_ = communicators(trace_, timeline_);
  std::vector<uint32_t> latest;
  before_.assign(timeline_.collectives.size(), trace::kNoIndex);
  for (uint32_t i = 0; i < timeline_.collectives.size(); ++i) {  // by start
    if (communicator_[i] >= latest.size()) {
      latest.resize(communicator_[i] + 1, trace::kNoIndex);
    }
    uint32_t& last = latest[communicator_[i]];
    before_[i] = last;
    if (last == trace::kNoIndex ||
        timeline_.collectives[i].when.end > timeline_.collectives[last].when.end) {
      last = i;
    }
  }
}

// The first all-gather of a step has no compute before it, the last reduction has none after it.
void ExposedCauses::find_ends_of_steps() {
  first_.assign(timeline_.collectives.size(), false);
  last_.assign(timeline_.collectives.size(), false);
  std::vector<bool> seen(timeline_.steps.size() + 1, false);
  std::vector<std::optional<size_t>> reduction(timeline_.steps.size() + 1);
  for (size_t i = 0; i < timeline_.collectives.size(); ++i) {
    const Collective& c = timeline_.collectives[i];
    const size_t step = step_of(timeline_, c.issued, c.when.start);
    if (is_unshard(c) && !seen[step]) {
      seen[step] = true;
      first_[i] = true;
    } else if (is_reduction(c)) {
      reduction[step] = i;
    }
  }
  for (const auto& i : reduction) {
    if (i) {
      last_[*i] = true;
    }
  }
}

void ExposedCauses::find_launches() {
  launches_.resize(trace_.tracks.size());
  const bool needs_launches = trace_.syncs.empty();  // see producer_of()
  device_of_.assign(timeline_.collectives.size(), trace::kNoIndex);
  const auto& events = timeline_.device_events;
  uint32_t collective = 0;  // in the same order as their device events
  for (uint32_t i = 0; i < events.size(); ++i) {
    const DeviceEvent& each = events[i];
    if (each.nature == Nature::kCommunication) {
      if (collective < timeline_.collectives.size() &&
          timeline_.collectives[collective].event == each.event) {
        device_of_[collective++] = i;
      }
    } else if (needs_launches && each.launch != trace::kNoIndex) {
      launches_[timeline_.place(each).thread].push_back(i);
    }
  }
  SHARDLENS_CHECK(collective == timeline_.collectives.size(),
                  "a collective of a device has no device event");
  for (std::vector<uint32_t>& thread : launches_) {
    sort_runs(thread,
              [&](uint32_t a, uint32_t b) { return events[a].launched < events[b].launched; });
  }
}

// The device event whose end the collective had to wait for, in addition to its issue.
//
// [Note: Producers] With cuda_sync rows, the trace says what the collective's stream waited for.
// Without them: a collective called while the compute stream is current waits for all that was
// launched there before. So does every reduction and every collective of other parallelism; FSDP
// calls all-gathers of parameters on a stream of their own, which waits for no compute.
std::optional<uint32_t> ExposedCauses::producer_of(size_t i) const {
  const Collective& c = timeline_.collectives[i];
  const uint32_t own = device_of_[i];
  if (own == trace::kNoIndex) {
    return std::nullopt;
  }
  const auto end = [&](uint32_t k) { return timeline_.device_events[k].when.end; };
  std::optional<uint32_t> producer;
  const auto consider = [&](uint32_t k) {
    if (k != Dependencies::kNone && timeline_.device_events[k].nature != Nature::kCommunication &&
        end(k) <= c.when.start && (!producer || end(k) > end(*producer))) {
      producer = k;
    }
  };
  consider(dependencies_->before_in_stream(own));
  consider(dependencies_->waited_for(own));
  if (trace_.syncs.empty() && !is_unshard(c) && c.issuer != trace::kNoIndex) {
    const DeviceEvent& event = timeline_.device_events[own];
    const std::vector<uint32_t>& thread = launches_[timeline_.place(event).thread];
    near_launch_ = partition_near(thread, near_launch_, [&](uint32_t k) {
      return timeline_.device_events[k].launched < event.launched;
    });
    // The last ones launched: one for each of a few streams.
    for (size_t at = near_launch_; at > 0 && near_launch_ - at < 8;) {
      consider(thread[--at]);
    }
  }
  return producer;
}

// The copy-in of an all-gather comes before it in its stream, so that the copy-in waits for the
// collective before it there. If that one was queued behind a collective of another stream, so was
// this one.
std::optional<uint32_t> ExposedCauses::blocker_of_stream(size_t i, const Start& start) const {
  const Collective& c = timeline_.collectives[i];
  const Collective& earlier = timeline_.collectives[before_[i]];
  const uint32_t blocker = before_[before_[i]];
  if (!start.producer || !c.issued || earlier.track != c.track || blocker == trace::kNoIndex) {
    return std::nullopt;
  }
  const DeviceEvent& copy = timeline_.device_events[*start.producer];
  const Collective& ahead = timeline_.collectives[blocker];
  const bool follows = timeline_.place(copy).track == c.track &&
                       copy.when.start >= earlier.when.end &&
                       copy.when.start - earlier.when.end <= kHandOver;
  const bool blocked = ahead.track != c.track && *c.issued < ahead.when.end &&
                       earlier.when.start >= ahead.when.end &&
                       earlier.when.start - ahead.when.end <= kHandOver;
  return follows && blocked ? std::optional(blocker) : std::nullopt;
}

ExposedCauses::Start ExposedCauses::start_of(size_t i) const {
  const Collective& c = timeline_.collectives[i];
  Start out;
  out.ready = std::min(c.issued.value_or(c.when.start), c.when.start);
  if (timeline_.device) {
    const auto producer = producer_of(i);
    if (producer) {
      const Nanoseconds end = timeline_.device_events[*producer].when.end;
      if (end > out.ready) {
        out.producer = producer;
        out.ready = end;
      }
    }
  }
  if (before_[i] == trace::kNoIndex) {
    return out;
  }
  const Interval& before = timeline_.collectives[before_[i]].when;
  const Interval wait{out.ready, std::min(before.end, c.when.start)};
  if (wait.length() > 0 && c.when.start - before.end <= kHandOver) {
    out.behind = before_[i];
    out.queued = compute_.length_within(wait);
  } else if (const auto blocker = blocker_of_stream(i, out)) {
    out.behind = blocker;
    out.queued = compute_.length_within({*c.issued, timeline_.collectives[*blocker].when.end});
  }
  return out;
}

Exposure ExposedCauses::of(size_t i,
                           const IntervalSet& exposed,
                           std::vector<CauseProof>* proof) const {
  Exposure out;
  out.collective = static_cast<uint32_t>(i);
  out.length = length_of(exposed);
  Nanoseconds missing = out.length - out.length / 2;
  for (const Interval& each : exposed) {
    if (missing <= each.length()) {
      out.half = each.start + missing;
      break;
    }
    missing -= each.length();
  }
  out.own = own_cause(i, exposed, out.length, proof);
  return out;
}

OwnCause ExposedCauses::own_cause(size_t i,
                                  const IntervalSet& exposed,
                                  Nanoseconds length,
                                  std::vector<CauseProof>* proof) const {
  const Collective& c = timeline_.collectives[i];
  if (c.issued) {
    Proof(trace_, proof).add("issued", c.issuer, {*c.issued, *c.issued});
  }
  Proof(trace_, proof).add("ran", c.event, c.when);
  if (c.needed_at) {
    Proof(trace_, proof).add("needed", *c.needed_at);
  }
  if (frozen_views_ != nullptr && frozen_views_->is_late[i]) {
    return {ExposedCause::kFrozenViews, true};
  }
  if (first_[i]) {
    return {ExposedCause::kFirst};
  }
  if (host_waited_in_call(c)) {
    return {ExposedCause::kHostIsCompute};
  }
  if (c.limiter_wait > 0 && at_least_half(c.limiter_wait, length)) {
    Proof(trace_, proof)
        .add("delayed by the limiter", trace::kNoIndex,
             {c.when.start - c.limiter_wait, c.when.start});
    return {ExposedCause::kLimiter};
  }
  if (held_in_queue(i, length, proof)) {
    return {ExposedCause::kOneQueue};
  }
  const Start start = start_of(i);
  if (start.producer) {
    const uint32_t event = timeline_.device_events[*start.producer].event;
    Proof(trace_, proof)
        .add("waited for", event, {trace_.events[event].start, trace_.events[event].end()});
  }
  if (start.behind && at_least_half(start.queued, length)) {
    const Collective& before = timeline_.collectives[*start.behind];
    Proof(trace_, proof).add("behind", before.event, before.when);
    return {ExposedCause::kQueued};
  }
  return timeline_.device ? device_cause(i, start, exposed, length, proof) : host_cause(i);
}

// With PyTorch on Gloo, the call that issues an all-gather waits for it, even for a prefetch.
bool ExposedCauses::host_waited_in_call(const Collective& c) const {
  return !timeline_.device && c.kind == CollectiveKind::kAllGather && c.issuer != trace::kNoIndex &&
         c.needed_at == trace_.events[c.issuer].end();
}

// With one queue a collective holds up the launches after it, and is held up by those before it: an
// all-gather waits for compute that it does not need.
bool ExposedCauses::held_in_queue(size_t i,
                                  Nanoseconds length,
                                  std::vector<CauseProof>* proof) const {
  if (!queue_ || !queue_->found() || last_[i]) {
    return false;
  }
  if (const auto held = queue_->held_by(i)) {
    const trace::Event& event = trace_.events[timeline_.device_events[*held].event];
    Proof(trace_, proof)
        .add("launched, but ran after it", timeline_.device_events[*held].event,
             {event.start, event.end()});
    return true;
  }
  const Collective& c = timeline_.collectives[i];
  return is_unshard(c) && c.issued && *c.issued < c.when.start &&
         at_least_half(compute_.length_within({*c.issued, c.when.start}), length);
}

const std::vector<uint32_t>& ExposedCauses::computes() const {
  const auto& events = timeline_.device_events;
  if (!computes_) {
    computes_.emplace();
    for (uint32_t i = 0; i < events.size(); ++i) {
      if (events[i].nature == Nature::kCompute) {
        computes_->push_back(i);
      }
    }
  }
  return *computes_;
}

bool ExposedCauses::host_was_late(const IntervalSet& exposed,
                                  Nanoseconds length,
                                  std::vector<CauseProof>* proof) const {
  const auto& events = timeline_.device_events;
  Nanoseconds late = 0;
  std::optional<uint32_t> proven;
  const std::vector<uint32_t>& computes = this->computes();
  for (const Interval& each : exposed) {
    near_compute_ = partition_near(computes, near_compute_,
                                   [&](uint32_t i) { return events[i].when.start < each.end; });
    if (near_compute_ == computes.size()) {
      continue;
    }
    const DeviceEvent& next = events[computes[near_compute_]];
    if (next.launch == trace::kNoIndex) {
      continue;
    }
    const Interval before{each.start, std::clamp(next.launched, each.start, each.end)};
    const Nanoseconds waiting =
        length_within(dependencies_->waiting(timeline_.place(next).thread), before);
    late += before.length() - waiting;
    if (before.length() > waiting) {
      proven = next.launch;
    }
  }
  if (!at_least_half(late, length)) {
    return false;
  }
  if (proven && proof != nullptr) {
    Proof(trace_, proof)
        .add("the next compute was launched", *proven,
             {trace_.events[*proven].start, trace_.events[*proven].end()});
  }
  return true;
}

OwnCause ExposedCauses::device_cause(size_t i,
                                     const Start& start,
                                     const IntervalSet& exposed,
                                     Nanoseconds length,
                                     std::vector<CauseProof>* proof) const {
  const Collective& c = timeline_.collectives[i];
  const Interval open{start.ready, c.needed_at.value_or(c.when.end)};
  const bool beside = open.start < open.end && compute_.length_within(open) > 0;
  if (is_reduction(c) && last_[i] && !beside) {
    return {ExposedCause::kLast};
  }
  if (host_was_late(exposed, length, proof)) {
    return {ExposedCause::kLateHost};
  }
  const Nanoseconds issued = c.issued.value_or(c.when.start);
  // Work of a CUDA graph has one launch, so that the host is late for none of it.
  const bool captured = c.basis != Basis::kNone;
  if (is_unshard(c)) {
    const bool own = !is_prefetched(c);
    if (!beside || (own && !captured && !compute_.contains(issued))) {
      return {own && (captured || c.part == UnitPart::kAllGatherBackward)
                  ? ExposedCause::kNoPrefetch
              : captured ? ExposedCause::kUnknown
                         : ExposedCause::kLateHost};
    }
  } else if (!is_reduction(c)) {
    // Collectives of other parallelism carry what compute needs, from the compute before them.
    if (start.producer && c.when.start - start.ready <= kHandOver) {
      return {ExposedCause::kDependency};
    }
    if (!beside && !captured && !compute_.contains(issued)) {
      return {ExposedCause::kLateHost};  // the device had finished when it was issued
    }
  }
  // It started so late for a reason that the trace does not show.
  if (c.when.start - start.ready > kHandOver && at_least_half(c.when.start - start.ready, length)) {
    return {ExposedCause::kUnknown};
  }
  return {.rated = beside || is_reduction(c)};
}

OwnCause ExposedCauses::host_cause(size_t i) const {
  const Collective& c = timeline_.collectives[i];
  const Interval open{c.issued.value_or(c.when.start), c.needed_at.value_or(c.when.end)};
  // Between a call and its wait the host runs a few views, which hide nothing.
  const bool beside =
      open.start < open.end && compute_.length_within(open) > c.when.length() / kLeastShare;
  if (is_unshard(c)) {
    if (!is_prefetched(c)) {
      return {c.part == UnitPart::kAllGatherBackward ? ExposedCause::kNoPrefetch
                                                     : ExposedCause::kHostIsCompute};
    }
    if (!beside) {
      return {ExposedCause::kLateHost};
    }
  } else if (!beside) {
    return {is_reduction(c) && last_[i] ? ExposedCause::kLast : ExposedCause::kHostIsCompute};
  }
  return {.rated = true};
}

SettledCauses::SettledCauses(const RankCollectives& rank) : rank_(rank) {
  for (uint32_t i = 0; i < rank.rows.size(); ++i) {
    const RankCollective& c = rank.rows[i];
    if (c.bytes == 0 && (c.unit == kNoUnit || c.part == UnitPart::kOther)) {
      continue;  // nothing says that these are alike
    }
    Best& best = best_[alike(c)];
    const Nanoseconds transfer = c.transfer.value_or(c.when.length());
    if (best.count++ == 0 || transfer < best.shortest) {
      best.shortest = transfer;
      best.collective = i;
    }
  }
}

SettledCauses::Alike SettledCauses::alike(const RankCollective& c) {
  const int kind = c.kind ? static_cast<int>(*c.kind) : -1;
  if (c.bytes > 0) {
    return {kind, c.communicator, c.bytes, kNoUnit, -1};
  }
  // Without a size: those of the same part of the same unit have the same one.
  return {kind, c.communicator, 0, c.unit, static_cast<int>(c.part)};
}

bool SettledCauses::at_best_rate(const Exposure& exposure, std::vector<CauseProof>* proof) const {
  const RankCollective& c = rank_.rows[exposure.collective];
  const auto found = best_.find(alike(c));
  if (found == best_.end() || found->second.count < 2) {
    return false;
  }
  const Best& best = found->second;
  const Interval part = own_part(c);
  if (proof != nullptr) {
    const RankCollective& fastest = rank_.rows[best.collective];
    const Nanoseconds begin = own_part(fastest).start;
    if (part.start > c.when.start) {
      proof->push_back({"ran with the last rank", c.event, rank_.names[c.name], part});
    }
    proof->push_back({"fastest of its size",
                      fastest.event,
                      rank_.names[fastest.name],
                      {begin, begin + best.shortest}});
  }
  // What was exposed before the last rank had begun was no transfer.
  const Nanoseconds transferred = std::min(exposure.length, part.length());
  const Nanoseconds beyond = std::max(c.transfer.value_or(0), part.length()) - best.shortest;
  return at_least_half(transferred - std::min(beyond, transferred), exposure.length);
}

ExposedCause SettledCauses::of(const Exposure& exposure, std::vector<CauseProof>* proof) const {
  const RankCollective& c = rank_.rows[exposure.collective];
  if (!exposure.own.certain && waited_for_peer(c, exposure)) {
    if (proof != nullptr) {
      std::erase_if(*proof, [](const CauseProof& fact) { return !is_of_every_cause(fact); });
      proof->push_back(
          {"the last rank started", trace::kNoIndex, "", {*c.last_start, *c.last_start}});
    }
    return ExposedCause::kPeer;
  }
  return exposure.own.rated && at_best_rate(exposure, proof) ? ExposedCause::kBandwidth
                                                             : exposure.own.cause;
}

}  // namespace shardlens::analysis
