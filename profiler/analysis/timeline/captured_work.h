#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "profiler/analysis/timeline/planned_order.h"
#include "profiler/analysis/timeline/sources.h"

// Finds the owners of device events that were launched by CUDA graphs; see [Note: Captured work].
namespace shardlens::analysis {

struct SeenEvent {                            // a device event whose owner may still be open
  uint32_t event = 0;                         // index into Trace::events
  const LaunchIndex::Call* launch = nullptr;  // nullptr: not in the trace
  std::optional<CollectiveKind> kind;         // of communication, from the name
  Owner owner;                                // of the host's time at the launch
  Nature nature = Nature::kCompute;
  Basis basis = Basis::kNone;
  const PlannedCall* planned = nullptr;  // the collective of the plan that it is
};

// The owners of what the CUDA graphs of one trace launched, and of annotated kernels. `sources`
// must outlive it. See [Note: Captured work] in timeline.h.
class CapturedWork {
 public:
  explicit CapturedWork(const Sources& sources);

  // Whether the trace has launches of CUDA graphs or annotations of kernels.
  [[nodiscard]] bool any() const { return annotated_ || !launches_.empty(); }
  // `events`: all device events by start. Sets owner, basis and nature of those that have no owner
  // yet, and `repeats` of the timeline, whose units may grow. Planned calls live as long as this.
  void attribute(std::vector<SeenEvent>& events, Timeline& timeline) const;

 private:
  const Sources& sources_;
  std::unordered_set<uint32_t> launches_;  // events that launch a CUDA graph
  bool annotated_ = false;
  std::unique_ptr<PlannedOrder> planned_;  // nullptr: not known
};

// The owners of annotated events of one replay, and what follows from them for events in between.
// `replay`: positions in `events`, by start. Events that repeat one of an uncaptured step keep the
// section of that.
void attribute_annotated(const trace::Trace& trace,
                         const std::vector<uint32_t>& replay,
                         std::vector<SeenEvent>& events,
                         Timeline& timeline);

// The owners of the collectives of one replay by the order of a plan. `name`: of the replay, for
// messages. A warning says why the plan does not fit; then they are ambiguous.
void attribute_planned(const Sources& sources,
                       PlannedOrder& order,
                       const std::vector<uint32_t>& replay,
                       const std::string& name,
                       std::vector<SeenEvent>& events,
                       Timeline& timeline);

// The owners of the compute of a replay whose collectives fit the planned step: that between
// FSDP2's copies of parameters and gradients, if the replay has those of the plan.
void attribute_planned_compute(const Sources& sources,
                               const PlannedPass& pass,
                               const std::vector<uint32_t>& replay,
                               std::vector<SeenEvent>& events,
                               Timeline& timeline);

// The index of the unit in the timeline, which gets it if it is new.
[[nodiscard]] uint32_t unit_named(const std::string& name, Timeline& timeline);

// Sets units, purposes and sizes of collectives whose Basis is not kNone. After
// attribute_collectives().
void attribute_captured_collectives(const Sources& sources, Timeline& timeline);

}  // namespace shardlens::analysis
