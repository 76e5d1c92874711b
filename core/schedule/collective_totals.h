#pragma once

#include <cstdint>
#include <vector>

#include "core/base/collective.h"
#include "core/base/units.h"
#include "core/schedule/planned.h"

namespace shardlens::schedule {

struct CollectiveTotal {
  CollectiveKind kind = CollectiveKind::kAllGather;
  int64_t count = 0;
  Bytes bytes = 0;  // of the larger message of each, as in `analyze`
  friend bool operator==(const CollectiveTotal&, const CollectiveTotal&) = default;
};

// What one rank's step communicates, by kind; only kinds that it has, in the order of
// CollectiveKind. Neither the loss's nor the gradient norm's all-reduce is planned.
[[nodiscard]] std::vector<CollectiveTotal> collective_totals(const plan::ResolvedPlan& plan,
                                                             const PlannedStep& step);

}  // namespace shardlens::schedule
