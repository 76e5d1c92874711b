#pragma once

#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

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
};

// The owners of what the CUDA graphs of one trace launched, and of annotated kernels. `sources`
// must outlive it. See [Note: Captured work] in timeline.h.
class CapturedWork {
 public:
  explicit CapturedWork(const Sources& sources);

  // Whether the trace has launches of CUDA graphs or annotations of kernels.
  [[nodiscard]] bool any() const { return annotated_ || !launches_.empty(); }
  // `events`: all device events by start. Sets owner, basis and nature of those that have no owner
  // yet, and `repeats` of the timeline, whose units may grow.
  void attribute(std::vector<SeenEvent>& events, Timeline& timeline) const;

 private:
  const Sources& sources_;
  std::unordered_set<uint32_t> launches_;  // events that launch a CUDA graph
  bool annotated_ = false;
};

// The owners of annotated events of one replay, and what follows from them for events in between.
// `replay`: positions in `events`, by start. Events that repeat one of an uncaptured step keep the
// section of that.
void attribute_annotated(const trace::Trace& trace,
                         const std::vector<uint32_t>& replay,
                         std::vector<SeenEvent>& events,
                         Timeline& timeline);

// Sets units, purposes and sizes of collectives whose Basis is not kNone. After
// attribute_collectives().
void attribute_captured_collectives(const Sources& sources, Timeline& timeline);

}  // namespace shardlens::analysis
