#include "core/plan/strategy_change.h"

#include <algorithm>
#include <string>
#include <vector>

namespace shardlens::plan {
namespace {

bool is_replicated(const UnitEntry& entry) {
  return entry.api == Api::kReplicate;
}

bool has_replicas(const Plan& plan) {
  return plan.mesh.replicate.value_or(1) > 1;
}

// Whether the units other than the root, which is often kept in any case, are kept after forward
// (`kept`), or all of them freed.
bool reshards(const Plan& plan, bool kept) {
  const auto is = [kept](const Reshard& reshard) {
    return kept ? reshard.kind == Reshard::Kind::kNo
                : reshard.kind == Reshard::Kind::kAuto || reshard.kind == Reshard::Kind::kYes;
  };
  return plan.units.empty()
             ? is(plan.reshard_after_forward)
             : std::ranges::all_of(plan.units, [&](const UnitEntry& entry) {
                 return entry.globs == std::vector<std::string>{""} ||
                        is(entry.reshard_after_forward.value_or(plan.reshard_after_forward));
               });
}

void set_mesh(Plan& plan, const Plan& of) {
  plan.mesh.replicate = of.mesh.replicate;
  plan.mesh.shard = of.mesh.shard;
}

void set_units(Plan& plan, const Plan& of) {
  plan.units = of.units;
  plan.reshard_after_forward = of.reshard_after_forward;
  plan.forward_prefetch_lists.clear();
  plan.backward_prefetch_lists.clear();
}

// `of`: the strategy's own plan.
Plan changed(Plan plan, std::string_view strategy, const Plan& of) {
  // A mesh of one rank is sharded over all ranks too.
  const bool sharded = plan.mesh.shard.value_or(2) > 1 || plan.mesh.replicate == 1;
  if (strategy == "replicate") {
    if (plan.units.empty() || !std::ranges::all_of(plan.units, is_replicated)) {
      set_mesh(plan, of);
      set_units(plan, of);
      plan.forward_prefetch = 0;
    }
    return plan;
  }
  if (std::ranges::any_of(plan.units, is_replicated)) {
    set_mesh(plan, of);
    set_units(plan, of);
    return plan;
  }
  if (strategy == "no_shard") {
    if (sharded) {
      set_mesh(plan, of);
    }
    return plan;
  }
  const bool keeps_mesh = strategy == "full_shard"     ? sharded && !has_replicas(plan)
                          : strategy == "hybrid_shard" ? sharded && has_replicas(plan)
                                                       : sharded;
  if (!keeps_mesh) {
    set_mesh(plan, of);
  }
  if (!reshards(plan, strategy == "shard_grad_op")) {
    plan.reshard_after_forward = of.reshard_after_forward;
    for (UnitEntry& entry : plan.units) {
      entry.reshard_after_forward.reset();
    }
  }
  return plan;
}

}  // namespace

Plan with_strategy(Plan plan, std::string_view strategy, const ModuleTree& tree) {
  const Plan of = strategy_plan(strategy, tree);
  Plan out = changed(plan, strategy, of);
  if (out == plan) {
    return plan;
  }
  out.source = of.source;
  return out;
}

}  // namespace shardlens::plan
