#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/json/json_reader.h"
#include "core/plan/plan.h"
#include "core/plan/resolved_plan.h"

namespace shardlens::plan {

// The keys of a plan file (docs/reference/plan.md) that say how ranks are arranged and parameters
// divided. Readers take the object that has the key; the defaults are returned where it has none.
// Errors: InputError with JSON pointer.
[[nodiscard]] MeshSizes read_mesh(const JsonNode& root);  // "mesh"
[[nodiscard]] std::map<std::string, TensorStyle> read_tensor_parallel(const JsonNode& root);
[[nodiscard]] ContextMethod read_context_method(const JsonNode& root);    // "context_parallel"
[[nodiscard]] ExpertDispatch read_expert_dispatch(const JsonNode& root);  // "expert_parallel"
[[nodiscard]] std::optional<int64_t> read_ranks_per_token(const JsonNode& root);  // the same
[[nodiscard]] std::vector<ParameterGroupEntry> read_parameter_groups(const JsonNode& unit);

[[nodiscard]] nlohmann::ordered_json mesh_json(const MeshSizes& mesh);  // "mesh"
// The sizes of a resolved plan's axes; replicate and shard are set.
[[nodiscard]] MeshSizes sizes_of(const ResolvedPlan& plan);
// The size of every axis; those that are not set are 1.
[[nodiscard]] nlohmann::ordered_json every_axis_json(const MeshSizes& mesh);
[[nodiscard]] nlohmann::ordered_json tensor_parallel_json(
    const std::map<std::string, TensorStyle>& styles);
[[nodiscard]] nlohmann::ordered_json context_parallel_json(ContextMethod method);
[[nodiscard]] nlohmann::ordered_json expert_parallel_json(const Plan& plan);
[[nodiscard]] nlohmann::ordered_json parameter_groups_json(
    const std::vector<ParameterGroupEntry>& groups);

}  // namespace shardlens::plan
