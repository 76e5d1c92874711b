#include "sim/search/candidates.h"

#include <utility>

#include <fmt/format.h>

#include "core/base/divisors.h"
#include "core/edits/plan_values.h"
#include "core/plan/grouped_blocks.h"
#include "core/workload/step_limits.h"
#include "sim/search/block_plan.h"
#include "sim/search/meshes.h"

namespace shardlens::sim {

std::vector<int64_t> batch_sizes(int64_t samples) {
  std::vector<int64_t> out = divisors(samples);
  std::erase_if(out, [samples](int64_t batch) {
    return samples / batch > plan::kMostMicrobatches || batch > plan::kMostSamples;
  });
  return out;
}

plan::MeshSizes mesh_of(const Candidate& candidate, int64_t ranks) {
  return {.replicate = ranks / (candidate.shard * candidate.context * candidate.tensor),
          .shard = candidate.shard,
          .context = candidate.context,
          .tensor = candidate.tensor,
          .expert = candidate.expert};
}

void set_mesh(Candidate& candidate, const plan::MeshSizes& mesh) {
  candidate.shard = mesh.shard.value_or(1);
  candidate.context = mesh.context;
  candidate.tensor = mesh.tensor;
  candidate.expert = mesh.expert;
}

bool gathers(const Candidate& candidate) {
  const int64_t shards = candidate.shard * candidate.context;
  return shards > 1 || (candidate.expert > 1 && shards * candidate.tensor > candidate.expert);
}

std::vector<Candidate> candidates(const plan::ModuleTree& tree, int64_t ranks, int64_t samples) {
  return candidates(tree, data_parallel_meshes(ranks), samples);
}

std::vector<Candidate> candidates(const plan::ModuleTree& tree,
                                  std::span<const plan::MeshSizes> meshes,
                                  int64_t samples) {
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
  const auto add = [&](const Candidate& candidate) {
    // If nothing is gathered, these settings have no effect. A single unit stays gathered until
    // backward and has no other unit to prefetch.
    const bool defaults =
        candidate.reshard && candidate.backward_prefetch && candidate.forward_prefetch == 0;
    const bool single =
        !candidate.reshard && candidate.backward_prefetch && candidate.forward_prefetch == 0;
    if (!(gathers(candidate) ? candidate.blocks_per_unit != 0 || single : defaults)) {
      return;
    }
    for (const int64_t batch : batches) {
      out.push_back(candidate);
      out.back().batch = batch;
      out.back().accumulate = samples / batch;
    }
  };
  for (const auto& [group, checkpoint] : of_operators) {
    for (const plan::MeshSizes& mesh : meshes) {
      for (const bool reshard : {true, false}) {
        for (const bool backward : {true, false}) {
          for (const int64_t forward : {0, 1}) {
            Candidate candidate{.blocks_per_unit = group,
                                .reshard = reshard,
                                .backward_prefetch = backward,
                                .forward_prefetch = forward,
                                .checkpoint = checkpoint};
            set_mesh(candidate, mesh);
            add(candidate);
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
  if (candidate.tensor == 1) {
    plan.tensor_parallel.clear();  // styles of an axis that the mesh does not have
  }
  plan.cpu_offload = base.cpu_offload || candidate.cpu_offload;
  set_precision(plan, candidate.precision);
  if (candidate.blocks.empty()) {
    set_units(plan, plan::grouped_blocks(tree, static_cast<size_t>(candidate.blocks_per_unit)));
    set_checkpoints(plan, tree, candidate.checkpoint ? 1 : 0);
    set_run(plan, candidate, ranks);
    return plan;
  }
  plan.mesh = mesh_of(candidate, ranks);
  set_forward_prefetch(plan, candidate.forward_prefetch);
  set_blocks(plan, candidate, tree);
  return plan;
}

void set_run(plan::Plan& plan, const Candidate& candidate, int64_t ranks) {
  plan.mesh = mesh_of(candidate, ranks);
  set_forward_prefetch(plan, candidate.forward_prefetch);
  set_reshard(plan, {candidate.reshard ? plan::Reshard::Kind::kAuto : plan::Reshard::Kind::kNo, 0});
  set_backward_prefetch(plan, candidate.backward_prefetch ? plan::BackwardPrefetch::kPre
                                                          : plan::BackwardPrefetch::kNone);
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
  out += ", " + name_of(mesh_of(candidate, ranks));
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
