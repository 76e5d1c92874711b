#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "core/plan/resolved_plan.h"

namespace shardlens::cli {

// [{"name", "ranks", "stride"}]: the process groups of several ranks.
[[nodiscard]] nlohmann::ordered_json groups_json(const plan::ResolvedPlan& plan);

// "2 replicas of 4 shards, tensor 2".
[[nodiscard]] std::string mesh_words(const plan::ResolvedPlan& plan);
// Prints which ranks communicate with which.
void print_groups(const plan::ResolvedPlan& plan);

}  // namespace shardlens::cli
