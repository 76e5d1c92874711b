#pragma once

#include <cstdint>

#include "core/plan/resolved_plan.h"
#include "core/workload/workload.h"

namespace shardlens::sim {

// A recorded pass of `from` samples with `to` samples instead.
//
// [Note: Batch of a recorded pass] Forward, loss and backward work on rows of samples, so their
// FLOPs, and the bytes that they keep, are in proportion to the samples. Of a product x·W the rows
// of x are scaled; of the gradient of W the dimension that is summed over, which is recognized by
// the shape of the result: that of a product's W in the same unit. Other operators are scaled with
// all their operands, except those whose largest operand has the size of a parameter (casts of
// weights, sums of gradients, lookups in tables), and the optimizer.
[[nodiscard]] plan::Workload with_batch(const plan::Workload& recorded,
                                        const plan::ResolvedPlan& plan,
                                        int64_t from,
                                        int64_t to);

}  // namespace shardlens::sim
