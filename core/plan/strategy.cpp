#include <algorithm>
#include <charconv>
#include <system_error>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/plan/glob.h"
#include "core/plan/json_reader.h"
#include "core/plan/plan.h"

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

std::optional<int64_t> positive(std::string_view text) {
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc{} && stop == end && value >= 1 && value <= kMostRanks
             ? std::optional(value)
             : std::nullopt;
}

}  // namespace

std::pair<int64_t, int64_t> parse_mesh(std::string_view text) {
  const size_t cross = std::min(text.find('x'), text.size());
  const auto replicate = positive(text.substr(0, cross));
  const auto shard = positive(text.substr(std::min(cross + 1, text.size())));
  if (!replicate || !shard) {
    throw UsageError(
        fmt::format("--mesh '{}': expected RxS, replicas times shards, such as 2x4", text));
  }
  return {*replicate, *shard};
}

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
    plan.mesh_shard = 1;
  } else if (strategy == "hybrid_shard") {
    plan.mesh_replicate = 2;
  }
  return plan;
}

}  // namespace shardlens::plan
