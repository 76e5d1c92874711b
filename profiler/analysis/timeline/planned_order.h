#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/collective.h"
#include "core/base/units.h"
#include "core/mesh/mesh.h"
#include "core/schedule/action.h"
#include "core/workload/workload.h"
#include "profiler/analysis/fsdp_log/sections.h"
#include "profiler/trace/run.h"

namespace shardlens::analysis {

// A collective of FSDP or DDP that a plan's step issues.
struct PlannedCall {
  CollectiveKind kind = CollectiveKind::kAllGather;
  bool backward = false;  // issued in backward
  schedule::Cause cause = schedule::Cause::kOwn;
  schedule::Stream stream = schedule::Stream::kAllGather;
  std::string unit;     // FQN; "": the root
  int64_t gather = -1;  // position of the last gather of this unit before it; -1: none
  Bytes bytes = 0;      // the larger of its two messages
  mesh::Group group;
  friend bool operator==(const PlannedCall&, const PlannedCall&) = default;
};

struct PlannedOwner {  // of work
  std::string unit;
  Section section = Section::kNone;
  friend bool operator==(const PlannedOwner&, const PlannedOwner&) = default;
};

// A kernel of the compute stream that copies the parameters of a unit out of an all-gather, or its
// gradients into a reduce-scatter.
struct PlannedCopy {
  bool gathers = false;
  PlannedOwner owner;
  std::vector<PlannedOwner> before;  // of the compute after the copy before it, in order
  friend bool operator==(const PlannedCopy&, const PlannedCopy&) = default;
};

struct PlannedPass {  // what a plan's step does, in the order of issue
  std::vector<PlannedCall> calls;
  std::vector<PlannedCopy> copies;
  std::vector<PlannedOwner> after;  // of the compute after the last copy
  friend bool operator==(const PlannedPass&, const PlannedPass&) = default;
};

// The collectives of a plan's steps, and the work between them. A step is planned when it is first
// asked for.
//
// Ownership  refers to the inputs, which must outlive it.
class PlannedOrder {
 public:
  // How often a step runs forward and backward, and in which of them it reduces gradients.
  struct Microbatches {
    int count = 1;
    bool sync_every = true;
    friend auto operator<=>(const Microbatches&, const Microbatches&) = default;
  };

  // `inputs`: their workload may be empty; then that of the model is used.
  explicit PlannedOrder(const trace::PlannedInputs& inputs) : inputs_(inputs) {}

  // A step in the steady state. The reference remains valid. Errors: InputError as
  // plan::step_workload(); RuntimeFault as schedule::planned_step().
  [[nodiscard]] const PlannedPass& step(const Microbatches& microbatches);

 private:
  const trace::PlannedInputs& inputs_;
  std::optional<plan::Workload> own_;  // of the model, when it has been needed
  std::map<Microbatches, PlannedPass> steps_;
};

}  // namespace shardlens::analysis
