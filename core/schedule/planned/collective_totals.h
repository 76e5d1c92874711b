#pragma once

#include <cstdint>
#include <vector>

#include "core/base/collective.h"
#include "core/base/units.h"
#include "core/schedule/planned/planned.h"

namespace shardlens::schedule {

struct CollectiveTotal {  // all collectives of one kind
  CollectiveKind kind = CollectiveKind::kAllGather;
  int64_t count = 0;
  Bytes bytes = 0;  // sum over the larger of input and output of each, as in `analyze`
  friend bool operator==(const CollectiveTotal&, const CollectiveTotal&) = default;
};

// A collective of a planned step: of a unit of the plan, or of a bucket, whose numbers follow those
// of the units (PlannedStep::unit_names).
struct PlannedCollective {
  CollectiveKind kind = CollectiveKind::kAllGather;
  UnitId unit = kNoUnit;
  mesh::GroupId group = mesh::kNoGroup;
  Bytes bytes = 0;  // the larger of input and output
};

// The collectives of one rank's step in the order of issue. The all-reduces of the loss and of the
// gradient norm are not included.
[[nodiscard]] std::vector<PlannedCollective> planned_collectives(const plan::ResolvedPlan& plan,
                                                                 const PlannedStep& step);

// planned_collectives() by kind; only kinds that occur, in the order of CollectiveKind.
[[nodiscard]] std::vector<CollectiveTotal> collective_totals(const plan::ResolvedPlan& plan,
                                                             const PlannedStep& step);

}  // namespace shardlens::schedule
