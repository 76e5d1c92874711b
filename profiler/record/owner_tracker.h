#pragma once

#include <vector>

#include "core/base/recorder.h"
#include "profiler/trace/model/owner.h"

namespace shardlens::record {

// Whom the host works for, from hooks and ranges as they come: between a unit's pre- and
// post-forward, and between its pre-backward and its gradients, the innermost that is open; what no
// unit is open for within backward is the root's; from the root's post-forward to the first
// pre-backward it is the loss; the optimizer and clipping have their ranges. Nobody's is what lies
// between. (analysis/sections.h finds the same in a trace.)
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
  std::vector<UnitId>
      gathered_;  // of the ranges: the unit, where it gathers or reduces; else kNoUnit
  trace::Section stage_ = trace::Section::kNone;
};

}  // namespace shardlens::record
