#pragma once

#include <vector>

#include "core/plan/resolved_plan.h"

namespace shardlens::plan {

// By parameter of the tree: whether autograd computes its gradient. That is what requires grad; in
// dialect fsdp1 also what is frozen in a flat parameter that is not, since all of it is in the
// graph, and the gradient of the frozen part is thrown away.
// Source  recorded from FSDP1 with use_orig_params, torch 2.11 (tests/data/parity,
//         fsdp1-frozen-prefix).
[[nodiscard]] std::vector<bool> differentiated_parameters(const ResolvedPlan& plan);

}  // namespace shardlens::plan
