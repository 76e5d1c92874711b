#include <string>
#include <unordered_map>

#include "profiler/analysis/action_index.h"
#include "profiler/analysis/names.h"
#include "profiler/analysis/nesting.h"
#include "profiler/analysis/sources.h"

namespace shardlens::analysis {
namespace {

using trace::Category;
using trace::Event;
using trace::Trace;

bool in_backward(const HookEvent& hook) {
  return hook.hook == Hook::kPreBackward || hook.hook == Hook::kGradsReady ||
         hook.hook == Hook::kBackwardEnd || hook.recompute;
}

UnitPart part_of(const std::optional<CollectiveKind>& kind, bool backward) {
  if (kind == CollectiveKind::kAllGather) {
    return backward ? UnitPart::kAllGatherBackward : UnitPart::kAllGatherForward;
  }
  return kind == CollectiveKind::kReduceScatter ? UnitPart::kReduceScatter
         : kind == CollectiveKind::kAllReduce   ? UnitPart::kAllReduce
                                                : UnitPart::kOther;
}

class CollectiveUnits {
 public:
  CollectiveUnits(const Sources& sources, Timeline& timeline)
      : trace_(sources.trace),
        timeline_(timeline),
        actions_(sources.trace),
        ranges_(sources.trace, [&](const Event& e) {
          return e.category == Category::kUserAnnotation && sources.names.of(e).is_fsdp_range;
        }) {
    for (uint32_t i = 0; i < timeline.units.size(); ++i) {
      units_.emplace(timeline.units[i], i);
    }
  }

  void describe(Collective& c) {
    if (const ActionIndex::Entry* action = c.action == 0 ? nullptr : actions_.action(c.action)) {
      c.issued_by = action->args->action.cause;
      c.needed_at = actions_.needed_at(c.action);
      const ActionIndex::Limiter limiter = actions_.limiter(c.action);
      const bool on_device = timeline_.device && limiter.stream_waits && c.issued;
      c.limiter_wait = limiter.host_waited + (on_device ? c.when.start - *c.issued : 0);
      const HookEvent* hook = actions_.hook_of(*action);
      c.part = part_of(c.kind, hook != nullptr && in_backward(*hook));
      return;
    }
    bool backward = false, prefetch = false;
    if (c.issuer != trace::kNoIndex) {
      const Event& issuer = trace_.events[c.issuer];
      for (const uint32_t range : ranges_.around(issuer.track, issuer.start)) {
        const auto fsdp = parse_fsdp_range(trace_.name(trace_.events[range]));
        if (!c.unit && fsdp->fqn && !fsdp->what.ends_with("_prefetch")) {
          c.unit = unit_id(*fsdp->fqn);
        }
        backward = backward || fsdp->what == "pre_backward" || fsdp->what == "backward_prefetch";
        prefetch = prefetch || fsdp->what.ends_with("_prefetch");
      }
    }
    c.part = c.unit ? part_of(c.kind, backward) : UnitPart::kOther;
    if (prefetch) {
      c.issued_by =
          backward ? schedule::Cause::kBackwardPrefetch : schedule::Cause::kForwardPrefetch;
    }
  }

 private:
  uint32_t unit_id(std::string_view fqn) {
    const auto [it, fresh] =
        units_.try_emplace(std::string(fqn), static_cast<uint32_t>(timeline_.units.size()));
    if (fresh) {
      timeline_.units.emplace_back(fqn);
    }
    return it->second;
  }

  const Trace& trace_;
  Timeline& timeline_;
  ActionIndex actions_;
  RangeFinder ranges_;
  std::unordered_map<std::string, uint32_t> units_;
};

}  // namespace

void attribute_collectives(const Sources& sources, Timeline& timeline) {
  CollectiveUnits units(sources, timeline);
  for (Collective& c : timeline.collectives) {
    units.describe(c);
  }
}

}  // namespace shardlens::analysis
