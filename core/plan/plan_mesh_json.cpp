#include "core/plan/plan_mesh_json.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/tree/glob.h"

namespace shardlens::plan {
namespace {

using Names = std::vector<std::string>;
using nlohmann::ordered_json;

const Names kTensorStyles{"column", "row", "vocabulary", "sequence", "replicate"};
const Names kParameterGroupKeys{"parameters", "mesh", "shard_dim"};
const Names kParameterMeshes{"dense", "expert"};
const Names kContextKeys{"method"};
const Names kContextMethods{"all_gather", "ring"};
const Names kExpertKeys{"dispatch", "ranks_per_token"};
const Names kExpertDispatches{"all_to_all", "all_gather", "deep_ep"};
constexpr int64_t kMostDims = 16;  // of a parameter

// The index in `values` of the first of `keys` in the object `name`; 0: absent.
size_t read_choice(const JsonNode& root, const char* name, const Names& keys, const Names& values) {
  const auto node = root.find(name);
  if (!node || node->is_null()) {
    return 0;
  }
  node->expect_object(fmt::format("an object with \"{}\"", keys.front()));
  node->allow_only(keys);
  const auto value = node->find(keys.front());
  return value ? value->one_of(values) : 0;
}

}  // namespace

MeshSizes read_mesh(const JsonNode& root) {
  const auto mesh = root.find("mesh");
  if (!mesh || mesh->is_null()) {
    return {};
  }
  mesh->expect_object("an object with sizes of axes");
  mesh->allow_only(mesh_axes());
  MeshSizes out;
  for (const std::string& axis : mesh_axes()) {
    if (const auto node = mesh->find(axis); node && !node->is_null()) {
      set_axis(out, axis, node->integer(1, kMostRanks));
    }
  }
  return out;
}

std::map<std::string, TensorStyle> read_tensor_parallel(const JsonNode& root) {
  std::map<std::string, TensorStyle> out;
  const auto node = root.find("tensor_parallel");
  if (!node || node->is_null()) {
    return out;
  }
  node->expect_object("an object {glob: style}");
  for (const std::string& glob : node->keys()) {
    const JsonNode style = *node->find(glob);
    if (const std::string problem = glob_problem(glob); !problem.empty()) {
      style.fail(problem);
    }
    out[glob] = style.json().is_number_integer()
                    ? TensorStyle{TensorStyle::Kind::kDimension, style.integer(0, kMostDims - 1)}
                    : TensorStyle{static_cast<TensorStyle::Kind>(style.one_of(kTensorStyles))};
  }
  return out;
}

ContextMethod read_context_method(const JsonNode& root) {
  return static_cast<ContextMethod>(
      read_choice(root, "context_parallel", kContextKeys, kContextMethods));
}

ExpertDispatch read_expert_dispatch(const JsonNode& root) {
  return static_cast<ExpertDispatch>(
      read_choice(root, "expert_parallel", kExpertKeys, kExpertDispatches));
}

std::optional<int64_t> read_ranks_per_token(const JsonNode& root) {
  const auto node = root.find("expert_parallel");
  const auto ranks = node && !node->is_null() ? node->find("ranks_per_token") : std::nullopt;
  if (!ranks || ranks->is_null()) {
    return std::nullopt;
  }
  if (read_expert_dispatch(root) != ExpertDispatch::kDeepEp) {
    ranks->fail("only deep_ep sends a token once to each rank; expected \"dispatch\": \"deep_ep\"");
  }
  return ranks->integer(1, kMostRanks);
}

std::vector<ParameterGroupEntry> read_parameter_groups(const JsonNode& unit) {
  std::vector<ParameterGroupEntry> out;
  const auto node = unit.find("groups");
  if (!node) {
    return out;
  }
  bool all = false;  // whether a group before has every parameter that is left
  for (const JsonNode& item : node->items("a list of groups of parameters")) {
    if (all) {
      item.fail("the group before it has all parameters; expected the one with \"**\" last");
    }
    item.expect_object("an object with \"parameters\", \"mesh\" and \"shard_dim\"");
    item.allow_only(kParameterGroupKeys);
    ParameterGroupEntry& group = out.emplace_back();
    if (const auto globs = item.find("parameters")) {
      group.parameters = globs->strings("a list of globs");
    }
    all = std::ranges::find(group.parameters, "**") != group.parameters.end();
    if (const auto mesh = item.find("mesh")) {
      group.expert = mesh->one_of(kParameterMeshes) == 1;
    }
    if (const auto dim = item.find("shard_dim")) {
      group.shard_dim = dim->integer(0, kMostDims - 1);
    }
  }
  return out;
}

ordered_json mesh_json(const MeshSizes& mesh) {
  ordered_json out = ordered_json::object();
  for (const std::string& axis : mesh_axes()) {
    const std::optional<int64_t> size = size_of_axis(mesh, axis);
    const bool divides = axis != mesh::kReplicate && axis != mesh::kShard;
    if (size && !(divides && *size == 1)) {
      out[axis] = *size;
    }
  }
  return out;
}

MeshSizes sizes_of(const ResolvedPlan& plan) {
  MeshSizes out;
  for (const std::string& axis : mesh_axes()) {
    set_axis(out, axis, std::max(plan.mesh.size(axis), plan.expert_mesh.size(axis)));
  }
  return out;
}

ordered_json every_axis_json(const MeshSizes& mesh) {
  ordered_json out = ordered_json::object();
  for (const std::string& axis : mesh_axes()) {
    out[axis] = size_of_axis(mesh, axis).value_or(1);
  }
  return out;
}

ordered_json tensor_parallel_json(const std::map<std::string, TensorStyle>& styles) {
  ordered_json out = ordered_json::object();
  for (const auto& [glob, style] : styles) {
    out[glob] = style.kind == TensorStyle::Kind::kDimension
                    ? ordered_json(style.dim)
                    : ordered_json(kTensorStyles[static_cast<size_t>(style.kind)]);
  }
  return out;
}

ordered_json context_parallel_json(ContextMethod method) {
  return {{"method", kContextMethods[static_cast<size_t>(method)]}};
}

ordered_json expert_parallel_json(const Plan& plan) {
  ordered_json out{{"dispatch", kExpertDispatches[static_cast<size_t>(plan.expert_dispatch)]}};
  if (plan.ranks_per_token) {
    out["ranks_per_token"] = *plan.ranks_per_token;
  }
  return out;
}

ordered_json parameter_groups_json(const std::vector<ParameterGroupEntry>& groups) {
  ordered_json out = ordered_json::array();
  for (const ParameterGroupEntry& group : groups) {
    out.push_back({{"parameters", group.parameters},
                   {"mesh", kParameterMeshes[group.expert ? 1 : 0]},
                   {"shard_dim", group.shard_dim}});
  }
  return out;
}

}  // namespace shardlens::plan
