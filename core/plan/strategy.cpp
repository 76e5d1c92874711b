#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/json/json_reader.h"
#include "core/plan/plan.h"
#include "core/tree/glob.h"

namespace shardlens::plan {
namespace {

// Unit entries with globs that match exactly the tree's blocks.
std::vector<UnitEntry> block_entries(const ModuleTree& tree, Api api) {
  std::vector<UnitEntry> out;
  if (tree.blocks.empty()) {
    return out;
  }
  const Module& list = tree.modules[tree.modules[tree.blocks.front()].parent];
  const std::string members = list.fqn + ".*";
  // A glob, unless names with a wildcard would make it match other modules.
  if (list.children == tree.blocks && !list.fqn.empty() && !has_wildcard(list.fqn) &&
      tree.find(members) == nullptr) {
    out.emplace_back().globs = {members};
  } else {
    for (const uint32_t block : tree.blocks) {
      out.emplace_back().globs = {tree.modules[block].fqn};
    }
  }
  for (UnitEntry& entry : out) {
    entry.api = api;
  }
  return out;
}

}  // namespace

const std::vector<std::string>& strategy_names() {
  static const std::vector<std::string> kNames{"full_shard", "shard_grad_op", "no_shard",
                                               "hybrid_shard", "replicate"};
  return kNames;
}

Plan strategy_plan(std::string_view strategy, const ModuleTree& tree) {
  const auto& names = strategy_names();
  if (std::find(names.begin(), names.end(), strategy) == names.end()) {
    throw UsageError(fmt::format("--strategy: unknown strategy '{}'; expected one of {}{}",
                                 strategy, quoted_list(names), suggestion(strategy, names)));
  }
  Plan plan;
  plan.source = fmt::format("--strategy {}", strategy);
  const Api api = strategy == "replicate" ? Api::kReplicate : Api::kFullyShard;
  plan.units = block_entries(tree, api);
  plan.units.emplace_back().globs = {""};
  plan.units.back().api = api;
  if (strategy == "shard_grad_op") {
    plan.reshard_after_forward = {Reshard::Kind::kNo, 0};
  } else if (strategy == "no_shard") {
    plan.mesh.shard = 1;
  } else if (strategy == "hybrid_shard") {
    plan.mesh.replicate = 2;
  }
  return plan;
}

}  // namespace shardlens::plan
