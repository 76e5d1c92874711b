#include "sim/search/block_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "core/base/divisors.h"
#include "core/edits/plan_values.h"
#include "core/plan/grouped_blocks.h"
#include "sim/search/meshes.h"

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

// A unit that may be prefetched.
struct PrefetchingUnit {
  std::string fqn;
  PrefetchCounts counts;
  bool unshards_in_backward = true;
};

// All units with parameters of their own except the root, in the order of forward.
std::vector<PrefetchingUnit> prefetching_units(const Candidate& frame,
                                               const plan::ModuleTree& tree) {
  const BlockChoices& choices = frame.blocks;
  std::map<uint32_t, PrefetchingUnit> out;  // by module
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].starts) {
      out[tree.blocks[i]] = {tree.modules[tree.blocks[i]].fqn, choices[i].prefetch};
    }
  }
  if (frame.outer_units) {
    for (const uint32_t module : plan::large_outer_modules(tree)) {
      const plan::UnitEntry entry = outer_entry(tree, module);
      out[module] = {entry.globs.front(), {}, entry.unshard_in_backward.value_or(true)};
    }
  }
  std::vector<PrefetchingUnit> units;
  for (auto& [module, unit] : out) {
    units.push_back(std::move(unit));
  }
  return units;
}

// Writes the counts as lists where they differ from the plan's depth and default.
void set_prefetch_lists(plan::Plan& out,
                        const Candidate& frame,
                        const std::vector<PrefetchingUnit>& units) {
  const auto differs = [&](int16_t PrefetchCounts::*count) {
    return frame.root_prefetch.*count != PrefetchCounts::kAsPlan ||
           std::any_of(units.begin(), units.end(), [&](const PrefetchingUnit& each) {
             return each.counts.*count != PrefetchCounts::kAsPlan;
           });
  };
  // A plan has either a depth or a map. The root is at -1 in forward and after all in backward.
  const auto size = static_cast<int64_t>(units.size());
  const bool forward = differs(&PrefetchCounts::forward);
  for (int64_t i = -1; forward && i < size; ++i) {
    const std::string own = i < 0 ? "" : units[i].fqn;
    const int16_t count = i < 0 ? frame.root_prefetch.forward : units[i].counts.forward;
    const int64_t end =
        i + 1 + (count == PrefetchCounts::kAsPlan ? frame.forward_prefetch : int64_t{count});
    for (int64_t next = i + 1; next < std::min(end, size); ++next) {
      out.forward_prefetch_lists[own].push_back(units[next].fqn);
    }
  }
  out.forward_prefetch = forward ? 0 : frame.forward_prefetch;
  for (int64_t i = size; i >= 0; --i) {
    const std::string own = i == size ? "" : units[i].fqn;
    const int16_t count = i == size ? frame.root_prefetch.backward : units[i].counts.backward;
    if (count == PrefetchCounts::kAsPlan) {
      continue;
    }
    std::vector<std::string>& list = out.backward_prefetch_lists[own];
    for (int64_t before = i; before-- > 0 && std::cmp_less(list.size(), count);) {
      if (units[before].unshards_in_backward) {
        list.push_back(units[before].fqn);
      }
    }
    // An empty list is the default. A unit is gathered already when its list is read.
    if (list.empty()) {
      list.push_back(own);
    }
  }
}

// ", other forward prefetch at 2 units"
std::string lists_of(const Candidate& frame, const char* pass, int16_t PrefetchCounts::*count) {
  int64_t units = frame.root_prefetch.*count == PrefetchCounts::kAsPlan ? 0 : 1;
  units += std::count_if(
      frame.blocks.begin(), frame.blocks.end(),
      [count](const BlockChoice& each) { return each.prefetch.*count != PrefetchCounts::kAsPlan; });
  return units == 0 ? ""
                    : fmt::format(", another {} prefetch at {} unit{}", pass, units,
                                  units == 1 ? "" : "s");
}

}  // namespace

std::vector<Candidate> plan_frames(const plan::ModuleTree& tree,
                                   int64_t ranks,
                                   int64_t samples,
                                   const std::vector<Precision>& precisions) {
  const auto blocks = static_cast<int64_t>(tree.blocks.size());
  const bool has_outer = !plan::large_outer_modules(tree).empty();
  std::vector<Candidate> out;
  for (const int64_t batch : batch_sizes(samples)) {
    for (const int64_t shard : divisors(ranks)) {
      for (const int64_t prefetch : {0, 1, 2}) {
        for (const int64_t size : {1, 2}) {
          for (const bool outer : {false, true}) {
            // Nothing is gathered if nothing is sharded.
            if ((shard == 1 && prefetch > 0) || (size > 1 && size >= blocks) ||
                (outer && !has_outer)) {
              continue;
            }
            for (const CheckpointSaves& saves : all_saves()) {
              out.push_back({.blocks_per_unit = size,
                             .shard = shard,
                             .forward_prefetch = prefetch,
                             .batch = batch,
                             .accumulate = samples / batch,
                             .outer_units = outer,
                             .saves = saves});
            }
          }
        }
      }
    }
  }
  if (precisions.empty()) {
    return out;
  }
  const std::vector<Candidate> each = std::move(out);
  out.clear();
  for (const Precision& precision : precisions) {
    for (const Candidate& frame : each) {
      out.push_back(frame);
      out.back().precision = precision;
    }
  }
  return out;
}

BlockChoices uniform_choices(const Candidate& frame, size_t blocks, bool kept) {
  BlockChoices out(blocks);
  const auto size = static_cast<size_t>(frame.blocks_per_unit);
  for (size_t i = 0; i < blocks; ++i) {
    out[i].starts = i % size == 0;
    out[i].kept = kept && out[i].starts;
  }
  return out;
}

Candidate with_blocks(const Candidate& frame, BlockChoices blocks) {
  Candidate out = frame;
  out.blocks = std::move(blocks);
  return out;
}

void set_blocks(plan::Plan& out, const Candidate& frame, const plan::ModuleTree& tree) {
  const BlockChoices& choices = frame.blocks;
  set_units(out, {});
  set_reshard(out, {});
  set_backward_prefetch(out, plan::BackwardPrefetch::kPre);
  set_checkpoints(out, tree, 0);
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
  if (gathers(frame)) {
    set_prefetch_lists(out, frame, prefetching_units(frame, tree));
  }
}

std::string name_by_block(const Candidate& frame, int64_t ranks) {
  const BlockChoices& choices = frame.blocks;
  const auto count = [&choices](bool BlockChoice::*what) {
    return std::count_if(choices.begin(), choices.end(),
                         [what](const BlockChoice& each) { return each.*what; });
  };
  const auto blocks = static_cast<int64_t>(choices.size());
  const int64_t units = count(&BlockChoice::starts), kept = count(&BlockChoice::kept);
  const int64_t checkpointed = count(&BlockChoice::checkpointed);
  std::string out =
      units == blocks ? plan::units_label(1) : fmt::format("{} blocks in {} units", blocks, units);
  out += frame.outer_units ? ", embeddings apart" : "";
  out += kept == 0 ? "" : fmt::format(", {} of {} units kept after forward", kept, units);
  if (checkpointed > 0) {
    const std::string saved = name_of(frame.saves);
    out += fmt::format(", {} of {} blocks checkpointed{}", checkpointed, blocks,
                       saved.empty() ? "" : fmt::format(" (saving {})", saved));
  }
  out += ", " + name_of(mesh_of(frame, ranks));
  out += frame.forward_prefetch == 0 ? ""
                                     : fmt::format(", forward prefetch {}", frame.forward_prefetch);
  out += lists_of(frame, "forward", &PrefetchCounts::forward);
  out += lists_of(frame, "backward", &PrefetchCounts::backward);
  out += frame.precision ? ", " + name_of(*frame.precision) : "";
  return out + fmt::format(", {} x {}", frame.batch, frame.accumulate);
}

}  // namespace shardlens::sim
