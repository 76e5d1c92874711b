#pragma once

#include <cstddef>
#include <vector>

#include "core/schedule/planned.h"

namespace shardlens::schedule {

// Where each microbatch begins in `step.order`.
[[nodiscard]] std::vector<size_t> microbatches(const PlannedStep& step);

// Whether items `a` and `b` of `step.order` are the same but for generations and events: the same
// operator, hook or action.
[[nodiscard]] bool same_item(const PlannedStep& step, size_t a, size_t b);

}  // namespace shardlens::schedule
