#pragma once

#include <cstddef>
#include <vector>

#include "core/schedule/planned/planned.h"

namespace shardlens::schedule {

// The index in `step.order` at which each microbatch begins.
[[nodiscard]] std::vector<size_t> microbatches(const PlannedStep& step);

// Whether items `a` and `b` of `step.order` are the same operator, hook or action, ignoring
// generations and events.
[[nodiscard]] bool same_item(const PlannedStep& step, size_t a, size_t b);

}  // namespace shardlens::schedule
