#pragma once

#include <vector>

#include "core/plan/resolved_plan.h"

namespace shardlens::plan {

// For each parameter of the tree: whether autograd computes its gradient. True for parameters that
// require grad. In dialect fsdp1 also true for a frozen parameter in a flat parameter with others
// that are not frozen: autograd differentiates the whole flat parameter, and the gradient of the
// frozen part is discarded.
// Source  recorded from FSDP1 with use_orig_params, torch 2.11 (tests/data/parity,
//         fsdp1-frozen-prefix).
[[nodiscard]] std::vector<bool> differentiated_parameters(const ResolvedPlan& plan);

}  // namespace shardlens::plan
