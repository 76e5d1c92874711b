#pragma once

#include <algorithm>
#include <cstdint>

#include "core/base/dtype.h"
#include "core/base/units.h"
#include "core/plan/resolved_plan.h"
#include "core/schedule/action.h"
#include "core/schedule/planned/planned.h"

namespace shardlens::sim {

struct Message {  // what a collective reads and writes on one rank
  DType dtype = DType::kF32;
  int64_t sent = 0, received = 0;  // elements
  [[nodiscard]] Bytes larger() const { return std::max(sent, received) * size_of(dtype); }
};

// The message of an action of `step`, which must be a collective (schedule::collective_of()).
[[nodiscard]] Message message_of(const plan::ResolvedPlan& plan,
                                 const schedule::PlannedStep& step,
                                 const schedule::Action& action);

}  // namespace shardlens::sim
