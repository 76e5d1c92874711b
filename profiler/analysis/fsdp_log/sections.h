#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "profiler/analysis/events/intervals.h"
#include "profiler/analysis/fsdp_log/fsdp_log.h"
#include "profiler/trace/model/owner.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

using trace::kSectionCount;
using trace::name_of;
using trace::Owner;
using trace::Section;

// The time of the host, cut into what each unit and each part of the step has of it.
//
// [Note: Whose work] Forward of a unit lies between its pre- and post-forward, backward between its
// pre- and post-backward; where these nest, the innermost that is open, and what no unit is open
// for within forward or backward is the root's. From the last post-forward to the first
// pre-backward is the loss. Ranges "Optimizer.…" are the optimizer's. Between backward and
// optimizer, from the first norm on, is clipping.
class Sections {
 public:
  Sections() = default;
  Sections(const trace::Trace& trace, FsdpLog& log);  // may add the root to the log's units

  struct Part {
    Interval when;
    Owner owner;
  };
  [[nodiscard]] const std::vector<Part>& parts() const { return parts_; }  // by start, disjoint
  // What was launched at `instant`; on a thread that has none of these ranges, nobody's.
  [[nodiscard]] Owner at(uint32_t track, Nanoseconds instant) const;
  [[nodiscard]] Owner at(Nanoseconds instant) const;  // on the threads that have them
  [[nodiscard]] bool empty() const { return parts_.empty(); }

 private:
  friend class SectionBuilder;
  std::vector<Part> parts_;
  std::vector<bool> tracks_;
};

}  // namespace shardlens::analysis
