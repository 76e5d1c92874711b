#include "cli/results/plan_mesh.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/format_bytes.h"
#include "core/base/standard_output.h"
#include "profiler/report/table.h"

#include "cli/results/output.h"

namespace shardlens::cli {
namespace {

using nlohmann::ordered_json;
using plan::ResolvedPlan;

std::string ranks_of(int64_t ranks) {
  return fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s");
}

// How the units' parameters are distributed.
std::string sharding_words(const ResolvedPlan& plan) {
  int64_t with_parameters = 0, replicated = 0;
  for (const plan::Unit& unit : plan.units) {
    with_parameters += unit.parameters.empty() ? 0 : 1;
    replicated += unit.parameters.empty() || unit.api != plan::Api::kReplicate ? 0 : 1;
  }
  if (replicated > 0 && replicated == with_parameters) {
    return "replicated on " + ranks_of(plan.world_size);
  }
  if (replicated > 0) {
    return fmt::format("sharded over {}, {} of {} units replicated", ranks_of(plan.shards()),
                       replicated, with_parameters);
  }
  if (plan.replicas() == 1) {
    return "sharded over " + ranks_of(plan.shards());
  }
  return plan.shards() == 1
             ? fmt::format("replicated on {} ranks", plan.replicas())
             : fmt::format("{} replicas of {} shards", plan.replicas(), plan.shards());
}

}  // namespace

ordered_json groups_json(const ResolvedPlan& plan) {
  ordered_json out = ordered_json::array();
  for (const mesh::Group& group : plan.groups) {
    if (group.size > 1) {
      out.push_back({{"name", group.name}, {"ranks", group.size}, {"stride", group.stride}});
    }
  }
  return out;
}

std::string mesh_words(const ResolvedPlan& plan) {
  std::string out = sharding_words(plan);
  for (const std::string_view axis : {mesh::kContext, mesh::kTensor}) {
    if (const int64_t ranks = plan.mesh.size(axis); ranks > 1) {
      out += fmt::format(", {} {}", axis, ranks);
    }
  }
  if (const int64_t ranks = plan.expert_mesh.size(mesh::kExpert); ranks > 1) {
    out += fmt::format(", experts divided over {} ranks and sharded over {}", ranks,
                       plan.expert_mesh.size(mesh::kExpertShard));
  }
  return out;
}

void print_groups(const ResolvedPlan& plan) {
  constexpr int64_t kMostShown = 16;
  report::Table table({{"group", report::Align::kLeft},
                       {"ranks"},
                       {"stride"},
                       {"groups"},
                       {"that of rank 0", report::Align::kLeft}});
  for (const mesh::Group& group : plan.groups) {
    if (group.size == 1) {
      continue;
    }
    std::vector<int64_t> members = group.members(0);
    const bool all = group.size <= kMostShown;
    members.resize(static_cast<size_t>(std::min(group.size, kMostShown)));
    table.row({group.name, format_count(group.size), format_count(group.stride),
               format_count(plan.world_size / group.size),
               fmt::format("{}{}", fmt::join(members, " "), all ? "" : " …")});
  }
  if (table.rows() > 0) {
    write_stdout("\n{}\n{}", bold("process groups"), table.render(style_of_stdout()));
  }
}

}  // namespace shardlens::cli
