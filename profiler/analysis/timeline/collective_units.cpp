#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "profiler/analysis/events/action_index.h"
#include "profiler/analysis/events/near_search.h"
#include "profiler/analysis/events/nesting.h"
#include "profiler/analysis/events/prefetch.h"
#include "profiler/analysis/events/sort_runs.h"
#include "profiler/analysis/timeline/sharding_parts.h"
#include "profiler/analysis/timeline/sources.h"

namespace shardlens::analysis {
namespace {

using trace::Event;
using trace::Trace;

constexpr std::string_view kModuleFrame = "nn.Module: ";

bool in_backward(const HookEvent& hook) {
  return hook.hook == Hook::kPreBackward || hook.hook == Hook::kGradsReady ||
         hook.hook == Hook::kBackwardEnd || hook.recompute;
}

schedule::Cause cause_of(UnshardBy by) {
  switch (by) {
    case UnshardBy::kOwn:
      return schedule::Cause::kOwn;
    case UnshardBy::kForwardPrefetch:
      return schedule::Cause::kForwardPrefetch;
    case UnshardBy::kBackwardPrefetch:
      return schedule::Cause::kBackwardPrefetch;
    case UnshardBy::kExplicitPrefetch:
      return schedule::Cause::kExplicitPrefetch;
  }
  return schedule::Cause::kOwn;
}

class CollectiveUnits {
 public:
  CollectiveUnits(const Sources& sources, Timeline& timeline)
      : trace_(sources.trace), timeline_(timeline), actions_(sources.trace) {
    if (timeline.device) {
      find_device_needs();
    }
  }

  void describe(Collective& c) {
    if (c.basis != Basis::kNone) {
      return;  // of a CUDA graph: no call and no range is its own
    }
    const ActionIndex::Entry* action = c.action == 0 ? nullptr : actions_.action(c.action);
    if (action != nullptr) {
      by_action(c, *action);
    } else {
      by_ranges(c);
    }
    if (!c.unit && c.issuer != trace::kNoIndex) {
      by_bucket(c);
    }
    if (!c.unit) {
      by_section(c);
    }
    if (!c.unit && c.section == Section::kNone && c.issuer != trace::kNoIndex) {
      by_module(c);
    }
  }

 private:
  void by_action(Collective& c, const ActionIndex::Entry& action) {
    c.issued_by = action.args->action.cause;
    c.needed_at = actions_.needed_at(c.action);
    // With a device, the host only enqueues a stream's wait, long before the stream waits.
    if (timeline_.device && c.issuer != trace::kNoIndex && c.unit) {
      const Event& issuer = trace_.events[c.issuer];
      const FsdpEvent* call = timeline_.fsdp.collective_at(issuer.track, issuer.start, near_call_);
      if (call != nullptr && call->call == FsdpCall::kUnshard) {
        c.needed_at = needed_on_device(c, *call);
      }
    }
    const ActionIndex::Limiter limiter = actions_.limiter(c.action);
    const bool on_device = timeline_.device && limiter.stream_waits && c.issued;
    c.limiter_wait = limiter.host_waited + (on_device ? c.when.start - *c.issued : 0);
    const HookEvent* hook = actions_.hook_of(action);
    set_purpose(c, sharding_purpose(c.kind), hook != nullptr && in_backward(*hook));
  }

  // An all-reduce of DDP is assigned to its bucket.
  void by_bucket(Collective& c) {
    const Event& issuer = trace_.events[c.issuer];
    const auto place = timeline_.ddp.bucket_at(issuer.track, issuer.start);
    if (!place) {
      return;
    }
    const DdpPass& pass = timeline_.ddp.passes[place->pass];
    const DdpBucket& bucket = pass.buckets[place->bucket];
    c.unit = named(timeline_.ddp.name_of(*place));
    set_purpose(c, Purpose::kReduceReplicas, true);
    if (c.bytes == 0 && bucket.numel > 0 && bucket.dtype) {
      c.bytes = bucket.numel * size_of(*bucket.dtype);
    }
    if (!timeline_.device) {
      c.needed_at = pass.compute_end;  // the Reducer waits for all buckets here
    }
  }

  // A collective that is called in a unit's forward or backward, for example by tensor parallelism
  // within the unit, is assigned to the unit.
  void by_section(Collective& c) {
    const bool called = c.issuer != trace::kNoIndex;
    const Owner owner =
        called ? timeline_.sections.at(trace_.events[c.issuer].track, trace_.events[c.issuer].start)
               : timeline_.sections.at(c.issued.value_or(c.when.start));
    c.section = owner.section;
    // In a simulated trace every collective of a unit has its action, and no host call is recorded
    // on the CPU.
    const bool simulated = trace_.metadata.simulated();
    if ((called || simulated) && owner.unit != kNoUnit && owner.unit < timeline_.units.size()) {
      c.unit = owner.unit;
      // FSDP's own collectives are in its ranges, so this one is of another parallelism. A trace of
      // Shardlens has no ranges around some of its own.
      set_purpose(c,
                  timeline_.fsdp.source == FsdpSource::kShardlens && !simulated
                      ? sharding_purpose(c.kind)
                      : Purpose::kOther,
                  owner.section == Section::kBackward);
    }
  }

  // Python's frames name modules by class and number ("Linear_3"). Collectives of the DDP or FSDP
  // wrapper itself are assigned to no module.
  void by_module(Collective& c) {
    if (!modules_) {
      modules_.emplace(trace_, OncePerName(trace_, [](std::string_view name) {
                         return name.starts_with(kModuleFrame);
                       }));
    }
    const Event& issuer = trace_.events[c.issuer];
    const auto around = modules_->innermost(issuer.track, issuer.start);
    if (!around) {
      return;
    }
    const std::string_view name = trace_.name(trace_.events[*around]).substr(kModuleFrame.size());
    if (!name.starts_with("DistributedDataParallel") &&
        !name.starts_with("FullyShardedDataParallel")) {
      c.unit = named(name);
      set_purpose(c, Purpose::kOther, false);
    }
  }

  // Index of the unit with this name in the timeline's units; added if new.
  uint32_t named(std::string_view name) {
    for (; named_ < timeline_.units.size(); ++named_) {
      ids_.emplace(timeline_.units[named_], static_cast<uint32_t>(named_));
    }
    const auto [found, fresh] =
        ids_.try_emplace(std::string(name), static_cast<uint32_t>(timeline_.units.size()));
    if (fresh) {
      timeline_.units.emplace_back(name);
      ++named_;
    }
    return found->second;
  }

  void by_ranges(Collective& c) {
    if (c.unit) {  // named by its arguments
      const Section section = timeline_.sections.at(c.issued.value_or(c.when.start)).section;
      set_purpose(c, sharding_purpose(c.kind), section == Section::kBackward);
    }
    if (c.issuer == trace::kNoIndex) {
      return;
    }
    const Event& issuer = trace_.events[c.issuer];
    if (c.bytes == 0 && issuer.category == trace::Category::kCpuOp) {
      CallSize size = call_size(trace_, issuer);
      if (!size.element) {
        const CallSize ran = call_size(trace_, trace_.events[c.event]);
        size.dtype = ran.dtype;
        size.element = ran.element;
      }
      c.bytes = size.bytes(c.kind, c.ranks);
    }
    const FsdpEvent* call = timeline_.fsdp.collective_at(issuer.track, issuer.start, near_call_);
    if (call == nullptr) {
      return;
    }
    if (!c.unit) {
      c.unit = call->unit;
    }
    set_purpose(c, sharding_purpose(c.kind), call->backward);
    c.limiter_wait = call->limiter;
    if (call->call == FsdpCall::kUnshard) {
      c.issued_by = cause_of(call->unshard_by);
    }
    if (timeline_.device) {
      c.needed_at = needed_on_device(c, *call);
    } else if (c.when.end <= call->when.end) {
      c.needed_at = issuer.end();  // the host waited in the call that issued it
    } else if (call->call == FsdpCall::kUnshard) {
      c.needed_at = copied_out(c, *call);
    }
  }

  // When the host began to copy out the parameters.
  [[nodiscard]] std::optional<Nanoseconds> copied_out(const Collective& c,
                                                      const FsdpEvent& call) const {
    const auto& events = timeline_.fsdp.events;
    for (auto it = &call; it != events.data() + events.size() && it->pass == call.pass; ++it) {
      if (it->call == FsdpCall::kCopyOut && it->unit == *c.unit) {
        return it->when.start;
      }
    }
    return std::nullopt;
  }

  // When a stream could have started an event that needs a unit: the event was launched, and the
  // event before it in the stream was done.
  struct Need {
    Nanoseconds launched;
    uint32_t unit;
    Nanoseconds ready;
  };

  // Keeps the first event that a unit launches between two ends of calls that gather: nothing asks
  // for the others.
  void find_device_needs() {
    std::vector<Nanoseconds> asked;  // ends of calls that gather, by start
    for (const FsdpEvent& e : timeline_.fsdp.events) {
      if (e.call == FsdpCall::kUnshard) {
        asked.push_back(e.when.end);
      }
    }
    sort_runs(asked, std::less<>());
    std::vector<std::optional<Nanoseconds>> ends(trace_.tracks.size());
    size_t near = 0, next_asked = 0;
    for (const DeviceEvent& each : timeline_.device_events) {
      const Place& place = timeline_.place(each);
      const auto before = ends[place.track];
      ends[place.track] = std::max(before.value_or(each.when.end), each.when.end);
      if (each.nature == Nature::kCommunication || each.launch == trace::kNoIndex ||
          place.owner.unit == kNoUnit) {
        continue;
      }
      if (timeline_.fsdp.collective_at(place.thread, each.launched, near) != nullptr) {
        continue;
      }
      next_asked =
          partition_near(asked, next_asked, [&](Nanoseconds end) { return end <= each.launched; });
      const bool repeats = !needs_.empty() && needs_.back().unit == place.owner.unit &&
                           needs_.back().launched <= each.launched &&
                           (next_asked == 0 || asked[next_asked - 1] <= needs_.back().launched);
      if (!repeats) {
        needs_.push_back({each.launched, place.owner.unit,
                          std::max(each.launched, before.value_or(each.launched))});
      }
    }
    sort_runs(needs_, [](const Need& a, const Need& b) { return a.launched < b.launched; });
  }

  // When the unit's first kernel that was launched after the call of the all-gather could have
  // started.
  [[nodiscard]] std::optional<Nanoseconds> needed_on_device(const Collective& c,
                                                            const FsdpEvent& call) {
    if (call.call != FsdpCall::kUnshard) {
      return std::nullopt;
    }
    near_need_ = partition_near(needs_, near_need_,
                                [&](const Need& n) { return n.launched < call.when.end; });
    constexpr size_t kMost = 4096;
    for (size_t i = near_need_; i < needs_.size() && i - near_need_ < kMost; ++i) {
      if (needs_[i].unit == *c.unit) {
        return needs_[i].ready;
      }
    }
    return std::nullopt;
  }

  const Trace& trace_;
  Timeline& timeline_;
  ActionIndex actions_;
  std::vector<Need> needs_;                        // by launch
  std::optional<RangeFinder> modules_;             // Python frames; built at first use
  std::unordered_map<std::string, uint32_t> ids_;  // of the first `named_` units
  size_t named_ = 0;
  size_t near_call_ = 0, near_need_ = 0;
};

}  // namespace

void attribute_collectives(const Sources& sources, Timeline& timeline) {
  CollectiveUnits units(sources, timeline);
  std::vector<Collective>& all = timeline.collectives;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i + kAhead < all.size() && all[i + kAhead].issuer != trace::kNoIndex) {
      prefetch(sources.trace.events[all[i + kAhead].issuer]);
    }
    units.describe(all[i]);
  }
}

}  // namespace shardlens::analysis
