#include "sim/search/candidates.h"

#include <utility>

#include <fmt/format.h>

#include "core/base/divisors.h"
#include "core/edits/plan_values.h"
#include "core/plan/grouped_blocks.h"
#include "core/workload/step_limits.h"
#include "sim/search/block_plan.h"

namespace shardlens::sim {

std::vector<int64_t> batch_sizes(int64_t samples) {
  std::vector<int64_t> out = divisors(samples);
  std::erase_if(out, [samples](int64_t batch) {
    return samples / batch > plan::kMostMicrobatches || batch > plan::kMostSamples;
  });
  return out;
}

std::vector<Candidate> candidates(const plan::ModuleTree& tree, int64_t ranks, int64_t samples) {
  const auto blocks = static_cast<int64_t>(tree.blocks.size());
  std::vector<std::pair<int64_t, bool>> of_operators;  // blocks of a unit, checkpoints
  for (const bool checkpoint : {false, true}) {
    for (const int64_t size : {1, 2, 4, 8, 0}) {
      if (size < blocks || size <= 1) {
        of_operators.emplace_back(size, checkpoint);
      }
    }
  }
  const std::vector<int64_t> batches = batch_sizes(samples);
  std::vector<Candidate> out;
  for (const auto& [group, checkpoint] : of_operators) {
    for (const int64_t shard : divisors(ranks)) {
      for (const bool reshard : {true, false}) {
        for (const bool backward : {true, false}) {
          for (const int64_t forward : {0, 1}) {
            // Nothing is gathered, so these settings have no effect.
            if (shard == 1 && (!reshard || !backward || forward > 0)) {
              continue;
            }
            // A single unit stays gathered until backward and has no other unit to prefetch.
            if (group == 0 && (reshard || !backward || forward > 0) && shard > 1) {
              continue;
            }
            for (const int64_t batch : batches) {
              out.push_back(
                  {group, shard, reshard, backward, forward, checkpoint, batch, samples / batch});
            }
          }
        }
      }
    }
  }
  return out;
}

plan::Plan plan_of(const Candidate& candidate,
                   const plan::Plan& base,
                   const plan::ModuleTree& tree,
                   int64_t ranks) {
  plan::Plan plan = base;
  set_mesh(plan, ranks / candidate.shard, candidate.shard);
  plan.cpu_offload = base.cpu_offload || candidate.cpu_offload;
  set_precision(plan, candidate.precision);
  set_forward_prefetch(plan, candidate.forward_prefetch);
  if (!candidate.blocks.empty()) {
    set_blocks(plan, candidate, tree);
    return plan;
  }
  set_units(plan, plan::grouped_blocks(tree, static_cast<size_t>(candidate.blocks_per_unit)));
  set_reshard(plan, {candidate.reshard ? plan::Reshard::Kind::kAuto : plan::Reshard::Kind::kNo, 0});
  set_backward_prefetch(plan, candidate.backward_prefetch ? plan::BackwardPrefetch::kPre
                                                          : plan::BackwardPrefetch::kNone);
  set_checkpoints(plan, tree, candidate.checkpoint ? 1 : 0);
  return plan;
}

Scenario scenario_of(const Candidate& candidate, const Scenario& base) {
  Scenario out = base;
  out.plan = plan_of(candidate, base.plan, base.model->tree(), base.world_size);
  out.step.batch = candidate.batch;
  out.step.accumulate = candidate.accumulate;
  return out;
}

std::string name_of(const Candidate& candidate, int64_t ranks) {
  if (!candidate.blocks.empty()) {
    return name_by_block(candidate, ranks);
  }
  std::string out = plan::units_label(static_cast<size_t>(candidate.blocks_per_unit));
  out += ", " + plan::mesh_label(ranks / candidate.shard, candidate.shard);
  out += candidate.reshard ? "" : ", " + plan::reshard_label({plan::Reshard::Kind::kNo, 0});
  out += candidate.backward_prefetch ? "" : ", no backward prefetch";
  out += candidate.forward_prefetch == 0
             ? ""
             : fmt::format(", forward prefetch {}", candidate.forward_prefetch);
  out += candidate.checkpoint ? ", checkpointed" : "";
  out += candidate.cpu_offload ? ", CPU offload" : "";
  out += candidate.precision ? ", " + name_of(*candidate.precision) : "";
  return out + fmt::format(", {} x {}", candidate.batch, candidate.accumulate);
}

}  // namespace shardlens::sim
