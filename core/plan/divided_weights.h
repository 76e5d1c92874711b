#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "core/plan/resolved_plan.h"

namespace shardlens::plan {

// By module: the dimension along which the plan's axis `tensor` divides its weight. Modules whose
// weights are whole are missing.
[[nodiscard]] std::unordered_map<std::string, int64_t> divided_weights(const ResolvedPlan& plan);

}  // namespace shardlens::plan
