#include "core/edits/plan_values.h"

#include <utility>

#include <fmt/format.h>

namespace shardlens::plan {

void set_mesh(Plan& plan, int64_t replicate, int64_t shard) {
  plan.mesh.replicate = replicate;
  plan.mesh.shard = shard;
}

void set_units(Plan& plan, std::vector<UnitEntry> units) {
  plan.units = std::move(units);
  plan.forward_prefetch_lists.clear();
  plan.backward_prefetch_lists.clear();
}

void set_reshard(Plan& plan, const Reshard& reshard) {
  plan.reshard_after_forward = reshard;
  for (UnitEntry& entry : plan.units) {
    entry.reshard_after_forward.reset();
  }
}

void set_forward_prefetch(Plan& plan, int64_t depth) {
  plan.forward_prefetch = depth;
  plan.forward_prefetch_lists.clear();
}

void set_backward_prefetch(Plan& plan, BackwardPrefetch prefetch) {
  plan.backward_prefetch = prefetch;
  plan.backward_prefetch_lists.clear();
}

std::vector<std::string> checkpointed_blocks(const ModuleTree& tree, size_t every) {
  std::vector<std::string> out;
  for (size_t i = 0; every > 0 && i < tree.blocks.size(); i += every) {
    out.push_back(tree.modules[tree.blocks[i]].fqn);
  }
  return out;
}

void set_checkpoints(Plan& plan, const ModuleTree& tree, size_t every) {
  plan.activation_checkpointing = checkpointed_blocks(tree, every);
}

std::string units_label(size_t together) {
  return together == 0   ? "the model as one unit"
         : together == 1 ? "one block a unit"
                         : fmt::format("{} blocks a unit", together);
}

std::string mesh_label(int64_t replicate, int64_t shard) {
  return shard == 1       ? "not sharded"
         : replicate == 1 ? fmt::format("sharded over {} ranks", shard)
                          : fmt::format("{} replicas of {} shards", replicate, shard);
}

std::string reshard_label(const Reshard& reshard) {
  switch (reshard.kind) {
    case Reshard::Kind::kAuto:
    case Reshard::Kind::kYes:
      return "freed after forward";
    case Reshard::Kind::kNo:
      return "kept after forward";
    case Reshard::Kind::kSubMesh:
      return fmt::format("kept over {} ranks", reshard.ranks);
  }
  return {};
}

std::string prefetch_label(int64_t units) {
  return units == 0   ? "none"
         : units == 1 ? "the next unit"
                      : fmt::format("the next {} units", units);
}

}  // namespace shardlens::plan
