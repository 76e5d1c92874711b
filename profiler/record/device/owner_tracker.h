#pragma once

#include <vector>

#include "core/base/recorder.h"
#include "profiler/trace/model/owner.h"

namespace shardlens::record {

// Finds the unit and section that the host is executing, from hooks and ranges as they occur:
// - forward or backward of the innermost open unit: open from pre-forward to post-forward, or from
//   pre-backward until its gradients are ready;
// - backward of the root, while backward runs with no open unit;
// - the loss, from the root's post-forward to the first pre-backward;
// - optimizer and clipping, within their ranges;
// - otherwise none.
// sections.h of profiler/analysis finds the same in a trace.
//
// Threads  as Recorder.
class OwnerTracker {
 public:
  void step_begin();
  void hook(const HookEvent& event);
  void range_begin(Range range, UnitId unit);
  void range_end();
  [[nodiscard]] trace::Owner owner() const;

 private:
  std::vector<UnitId> forward_, backward_;  // units that are open
  std::vector<Range> ranges_;
  std::vector<UnitId> gathered_;  // per open range: the unit it gathers or reduces, or kNoUnit
  trace::Section stage_ = trace::Section::kNone;
};

}  // namespace shardlens::record
