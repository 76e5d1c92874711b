#include "sim/search/block_plan.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/plan/grouped_blocks.h"
#include "sim/search/candidates.h"

namespace shardlens::sim {
namespace {

using plan::CheckpointSaves;
using Products = CheckpointSaves::Products;

std::vector<CheckpointSaves> all_saves() {
  return {{Products::kNone, false},
          {Products::kNone, true},
          {Products::kEverySecond, true},
          {Products::kAll, false},
          {Products::kAll, true}};
}

std::string name_of(const CheckpointSaves& saves) {
  std::string out = saves.attention ? "attention" : "";
  if (saves.products != Products::kNone) {
    out += out.empty() ? "" : " and ";
    out += saves.products == Products::kAll ? "products" : "every second product";
  }
  return out;
}

// An entry for a large module outside of the blocks. The embedding comes first in forward and needs
// no parameters in backward; backward begins with the head, which therefore stays gathered.
plan::UnitEntry outer_entry(const plan::ModuleTree& tree, uint32_t module) {
  plan::UnitEntry out;
  out.globs = {tree.modules[module].fqn};
  if (module < tree.blocks.front() && tree.modules[module].type == "Embedding") {
    out.unshard_in_backward = false;
  } else if (module > tree.blocks.back()) {
    out.reshard_after_forward = plan::Reshard{plan::Reshard::Kind::kNo, 0};
  }
  return out;
}

}  // namespace

std::vector<PlanFrame> plan_frames(const plan::ModuleTree& tree, int64_t ranks, int64_t samples) {
  const size_t blocks = tree.blocks.size();
  const bool has_outer = !plan::large_outer_modules(tree).empty();
  std::vector<PlanFrame> out;
  for (const int64_t batch : batch_sizes(samples)) {
    for (const int64_t shard : divisors(ranks)) {
      for (const int64_t prefetch : {0, 1, 2}) {
        for (const size_t size : {1, 2}) {
          for (const bool outer : {false, true}) {
            // Nothing is gathered if nothing is sharded.
            if ((shard == 1 && prefetch > 0) || (size > 1 && size >= blocks) ||
                (outer && !has_outer)) {
              continue;
            }
            for (const CheckpointSaves& saves : all_saves()) {
              out.push_back({.batch = batch,
                             .accumulate = samples / batch,
                             .shard = shard,
                             .forward_prefetch = prefetch,
                             .blocks_per_unit = size,
                             .outer_units = outer,
                             .saves = saves});
            }
          }
        }
      }
    }
  }
  return out;
}

BlockChoices uniform_choices(const PlanFrame& frame, size_t blocks, bool kept) {
  BlockChoices out(blocks);
  for (size_t i = 0; i < blocks; ++i) {
    out[i].starts = i % frame.blocks_per_unit == 0;
    out[i].kept = kept && out[i].starts;
  }
  return out;
}

plan::Plan plan_of(const PlanFrame& frame,
                   const BlockChoices& choices,
                   const plan::Plan& base,
                   const plan::ModuleTree& tree,
                   int64_t ranks) {
  plan::Plan out = base;
  out.mesh_shard = frame.shard;
  out.mesh_replicate = ranks / frame.shard;
  out.reshard_after_forward = {};
  out.backward_prefetch = plan::BackwardPrefetch::kPre;
  out.forward_prefetch = frame.forward_prefetch;
  out.forward_prefetch_lists.clear();
  out.backward_prefetch_lists.clear();
  out.units.clear();
  out.activation_checkpointing.clear();
  if (frame.outer_units) {
    for (const uint32_t module : plan::large_outer_modules(tree)) {
      out.units.push_back(outer_entry(tree, module));
    }
  }
  for (size_t i = 0; i < choices.size(); ++i) {
    const std::string& fqn = tree.modules[tree.blocks[i]].fqn;
    if (choices[i].starts) {
      plan::UnitEntry& entry = out.units.emplace_back();
      if (choices[i].kept) {
        entry.reshard_after_forward = plan::Reshard{plan::Reshard::Kind::kNo, 0};
      }
    } else {
      out.units.back().grouped = true;
    }
    out.units.back().globs.push_back(fqn);
    if (choices[i].checkpointed) {
      out.activation_checkpointing.push_back(fqn);
    }
  }
  out.units.emplace_back().globs = {""};
  out.checkpointing_saves = out.activation_checkpointing.empty() ? CheckpointSaves{} : frame.saves;
  return out;
}

std::string name_of(const PlanFrame& frame, const BlockChoices& choices, int64_t ranks) {
  const auto count = [&choices](bool BlockChoice::*what) {
    return std::count_if(choices.begin(), choices.end(),
                         [what](const BlockChoice& each) { return each.*what; });
  };
  const auto blocks = static_cast<int64_t>(choices.size());
  const int64_t units = count(&BlockChoice::starts), kept = count(&BlockChoice::kept);
  const int64_t checkpointed = count(&BlockChoice::checkpointed);
  std::string out = units == blocks ? std::string("each block a unit")
                                    : fmt::format("{} blocks in {} units", blocks, units);
  out += frame.outer_units ? ", embeddings apart" : "";
  out += kept == 0 ? "" : fmt::format(", {} of {} units kept after forward", kept, units);
  if (checkpointed > 0) {
    const std::string saved = name_of(frame.saves);
    out += fmt::format(", {} of {} blocks checkpointed{}", checkpointed, blocks,
                       saved.empty() ? "" : fmt::format(" (saving {})", saved));
  }
  out += frame.shard == 1       ? ", not sharded"
         : frame.shard == ranks ? fmt::format(", sharded over {} ranks", ranks)
                                : fmt::format(", sharded over {} of {} ranks", frame.shard, ranks);
  out += frame.forward_prefetch == 0 ? ""
                                     : fmt::format(", forward prefetch {}", frame.forward_prefetch);
  return out + fmt::format(", {} x {}", frame.batch, frame.accumulate);
}

}  // namespace shardlens::sim
