#include "profiler/analysis/overlap/exposed_cause.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace shardlens::analysis {
namespace {

using schedule::Cause;

bool waited_for_peer(const Collective& c, const IntervalSet& exposed, Nanoseconds length) {
  if (!c.last_start || *c.last_start <= c.when.start) {
    return false;
  }
  Nanoseconds waiting = 0;
  for (const Interval& e : exposed) {
    waiting += std::max<Nanoseconds>(0, std::min(e.end, *c.last_start) - e.start);
  }
  return waiting >= length - waiting;
}

}  // namespace

std::string_view name_of(ExposedCause cause) {
  constexpr std::string_view kNames[] = {
      "first",   "last",      "no_prefetch",  "late_host",       "queued",
      "limiter", "bandwidth", "frozen_views", "host_is_compute", "peer"};
  return kNames[static_cast<size_t>(cause)];
}

std::string_view explanation_of(ExposedCause cause) {
  switch (cause) {
    case ExposedCause::kFirst:
      return "first all-gather of the step: nothing runs before it";
    case ExposedCause::kLast:
      return "no compute left to overlap with";
    case ExposedCause::kNoPrefetch:
      return "issued only when it was needed; prefetch it";
    case ExposedCause::kLateHost:
      return "the host issued it late; no compute was left to overlap with";
    case ExposedCause::kQueued:
      return "waited behind another collective of its communicator";
    case ExposedCause::kLimiter:
      return "held back by limit_all_gathers";
    case ExposedCause::kBandwidth:
      return "issued in time, but longer than the concurrent compute";
    case ExposedCause::kFrozenViews:
      return "frozen views: issued only at the end of backward, but its gradients were ready "
             "before";
    case ExposedCause::kHostIsCompute:
      return "on the CPU the host computes, and it waits in this call; only a prefetch helps";
    case ExposedCause::kPeer:
      return "another rank started late";
  }
  return "";
}

size_t step_of(const std::vector<Step>& steps, Nanoseconds instant) {
  const auto after =
      std::upper_bound(steps.begin(), steps.end(), instant,
                       [](Nanoseconds t, const Step& s) { return t < s.window.start; });
  if (after == steps.begin() || instant >= std::prev(after)->window.end) {
    return steps.size();
  }
  return static_cast<size_t>(after - steps.begin()) - 1;
}

ExposedCauses::ExposedCauses(const trace::Trace& trace,
                             const Timeline& timeline,
                             const FrozenViews* frozen_views)
    : trace_(trace), timeline_(timeline), frozen_views_(frozen_views) {
  std::unordered_map<uint32_t, Nanoseconds> last_end;  // by track
  before_.reserve(timeline.collectives.size());
  for (const Collective& c : timeline.collectives) {
    const auto [it, fresh] = last_end.try_emplace(c.track, c.when.end);
    before_.push_back(fresh ? std::nullopt : std::optional(it->second));
    it->second = std::max(it->second, c.when.end);
  }
  find_ends_of_steps();
}

// The first all-gather of a step has no compute before it, the last reduction has none after it.
void ExposedCauses::find_ends_of_steps() {
  first_.assign(timeline_.collectives.size(), false);
  last_.assign(timeline_.collectives.size(), false);
  std::vector<bool> seen(timeline_.steps.size() + 1, false);
  std::vector<std::optional<size_t>> reduction(timeline_.steps.size() + 1);
  for (size_t i = 0; i < timeline_.collectives.size(); ++i) {
    const Collective& c = timeline_.collectives[i];
    const size_t step = step_of(timeline_.steps, c.issued.value_or(c.when.start));
    if (c.unit && c.kind == CollectiveKind::kAllGather && !seen[step]) {
      seen[step] = true;
      first_[i] = true;
    } else if (c.unit && c.kind != CollectiveKind::kAllGather) {
      reduction[step] = i;
    }
  }
  for (const auto& i : reduction) {
    if (i) {
      last_[*i] = true;
    }
  }
}

ExposedCause ExposedCauses::of(size_t i, const IntervalSet& exposed, Nanoseconds length) const {
  const Collective& c = timeline_.collectives[i];
  if (frozen_views_ != nullptr && frozen_views_->is_late[i]) {
    return ExposedCause::kFrozenViews;
  }
  if (waited_for_peer(c, exposed, length)) {
    return ExposedCause::kPeer;
  }
  if (first_[i]) {
    return ExposedCause::kFirst;
  }
  if (host_waited_in_call(c)) {
    return ExposedCause::kHostIsCompute;
  }
  if (c.limiter_wait > 0 && c.limiter_wait >= length - c.limiter_wait) {
    return ExposedCause::kLimiter;
  }
  const Nanoseconds issued = c.issued.value_or(c.when.start);
  const bool queued = before_[i] && *before_[i] > issued;
  if (queued && c.when.start - issued >= length - (c.when.start - issued)) {
    return ExposedCause::kQueued;
  }
  const Interval open{issued, c.needed_at.value_or(c.when.end)};
  const bool compute_beside = open.start < open.end && length_within(timeline_.compute, open) > 0;
  if (c.kind == CollectiveKind::kAllGather) {
    return all_gather_cause(c, issued, compute_beside);
  }
  if (compute_beside) {
    return ExposedCause::kBandwidth;
  }
  if (c.unit && last_[i]) {
    return ExposedCause::kLast;
  }
  return timeline_.device ? ExposedCause::kLateHost : ExposedCause::kHostIsCompute;
}

// With PyTorch on Gloo, the call that issues an all-gather waits for it, even for a prefetch.
bool ExposedCauses::host_waited_in_call(const Collective& c) const {
  return !timeline_.device && c.kind == CollectiveKind::kAllGather && c.issuer != trace::kNoIndex &&
         c.needed_at == trace_.events[c.issuer].end();
}

ExposedCause ExposedCauses::all_gather_cause(const Collective& c,
                                             Nanoseconds issued,
                                             bool compute_beside) const {
  const bool prefetched = c.issued_by == Cause::kForwardPrefetch ||
                          c.issued_by == Cause::kBackwardPrefetch ||
                          c.issued_by == Cause::kExplicitPrefetch;
  if (prefetched) {
    return compute_beside ? ExposedCause::kBandwidth : ExposedCause::kLateHost;
  }
  if (c.part == UnitPart::kAllGatherBackward) {
    return ExposedCause::kNoPrefetch;
  }
  if (!timeline_.device) {
    return ExposedCause::kHostIsCompute;
  }
  return contains(timeline_.compute, issued) ? ExposedCause::kBandwidth : ExposedCause::kLateHost;
}

}  // namespace shardlens::analysis
