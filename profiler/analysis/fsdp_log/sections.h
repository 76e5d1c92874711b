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

// Splits the host's time into sections that belong to units and parts of the step.
//
// [Note: Whose work] A unit's forward is between its pre- and post-forward, its backward between
// its pre- and post-backward. A forward that an activation checkpoint
// runs again is part of backward. If units nest, time belongs to the innermost open unit; time
// within forward or backward with no open unit belongs to the root. From the last post-forward to
// the first pre-backward is the loss. Ranges "Optimizer.…" are the optimizer, except forward, loss
// and backward within them: Optimizer.step() runs a closure. Between backward and optimizer, time
// from the first norm on is gradient clipping.
class Sections {
 public:
  Sections() = default;
  // May add the root to the log's units.
  Sections(const trace::Trace& trace, const EventLists& lists, FsdpLog& log);

  struct Part {
    Interval when;
    Owner owner;
  };
  [[nodiscard]] const std::vector<Part>& parts() const { return parts_; }  // by start, disjoint
  // The owner of work launched at `instant`; none on a thread without FSDP, optimizer or step
  // ranges.
  [[nodiscard]] Owner at(uint32_t track, Nanoseconds instant) const;
  // The same; `near`: a place that is kept from one search to the next, which is fast if the
  // instants are near.
  [[nodiscard]] Owner at(uint32_t track, Nanoseconds instant, size_t& near) const;
  [[nodiscard]] Owner at(Nanoseconds instant) const;  // on a thread with such ranges
  [[nodiscard]] bool empty() const { return parts_.empty(); }

 private:
  friend class SectionBuilder;
  [[nodiscard]] Owner near_at(Nanoseconds instant, size_t& near) const;
  std::vector<Part> parts_;
  std::vector<bool> tracks_;
};

}  // namespace shardlens::analysis
