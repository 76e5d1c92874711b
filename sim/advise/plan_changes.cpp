#include "sim/advise/plan_changes.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/edits/module_values.h"
#include "core/edits/plan_edits.h"
#include "core/edits/plan_values.h"
#include "core/plan/grouped_blocks.h"

namespace shardlens::sim {
namespace {

using plan::PlanEdit;
using plan::PlanKey;
using plan::Reshard;

bool is_sharded(const plan::Unit& unit) {
  return unit.api == plan::Api::kFullyShard && !unit.parameters.empty();
}

// Lists the changes of one scenario.
class Changes {
 public:
  Changes(const Scenario& scenario, const plan::ResolvedPlan& plan)
      : tree_(plan.tree),
        now_(plan),
        step_(scenario.step),
        edits_(plan.tree, plan.world_size, plan.plan.dialect),
        sharded_(std::any_of(plan.units.begin(), plan.units.end(), is_sharded)) {}

  std::vector<PlanEdit> take() {
    if (sharded_) {
      if (now_.shards() > 1) {
        reshard();
        backward_gathers();
        prefetch();
        communicators();
      }
      units();
      mesh();
    } else {
      buckets();
    }
    checkpoints();
    microbatches();
    return std::move(out_);
  }

 private:
  void add(PlanEdit edit) { out_.push_back(std::move(edit)); }

  // Whether the unit is sharded between forward and backward.
  [[nodiscard]] bool frees(size_t unit) const {
    const Reshard::Kind kind = now_.units[unit].reshard_after_forward.kind;
    return kind == Reshard::Kind::kYes || kind == Reshard::Kind::kSubMesh ||
           (kind == Reshard::Kind::kAuto && unit != 0);
  }

  void reshard() {
    bool any_freed = false, any_kept = false;
    for (size_t i = 1; i < now_.units.size(); ++i) {
      if (is_sharded(now_.units[i])) {
        (frees(i) ? any_freed : any_kept) = true;
      }
    }
    if (any_freed) {
      add(edits_.reshard(Reshard::Kind::kNo));
      keep_last();
    }
    if (any_kept) {
      add(edits_.reshard(Reshard::Kind::kAuto));
    }
  }

  // The last units are needed first in backward, so keeping them costs the least memory for the
  // time that it saves. Only where every unit is one module, as a plan's globs can name it.
  void keep_last() {
    std::vector<std::string> freed;
    for (size_t i = 1; i < now_.units.size(); ++i) {
      if (is_sharded(now_.units[i]) && frees(i) && now_.units[i].group == 0) {
        if (now_.units[i].modules.size() != 1) {
          return;
        }
        freed.push_back(now_.units[i].fqn);
      }
    }
    if (now_.plan.dialect == plan::Dialect::kFsdp1) {
      return;  // the sharding strategy is the whole model's
    }
    std::set<size_t> counts{1, freed.size() / 2};
    counts.erase(0);
    counts.erase(freed.size());
    for (const size_t count : counts) {
      add(edits_.keep({freed.end() - static_cast<ptrdiff_t>(count), freed.end()}, listed_units(),
                      now_.plan.units));
    }
  }

  // An embedding's backward does not read its weight. Only where such a unit is one module, as in
  // keep_last().
  void backward_gathers() {
    std::vector<std::string> modules;
    for (size_t i = 1; i < now_.units.size(); ++i) {
      const plan::Unit& unit = now_.units[i];
      if (is_sharded(unit) && frees(i) && unit.unshard_in_backward && unit.groups == 1 &&
          unit.modules.size() == 1 && has_embeddings_only(unit)) {
        modules.push_back(unit.fqn);
      }
    }
    if (!modules.empty() && now_.plan.dialect == plan::Dialect::kFsdp2) {
      add(edits_.no_backward_gather(modules, listed_units(), now_.plan.units));
    }
  }

  // Considers all modules that use a parameter: a head may have the embedding's weight too.
  [[nodiscard]] bool has_embeddings_only(const plan::Unit& unit) const {
    return std::ranges::none_of(tree_.modules, [&unit](const plan::Module& module) {
      return module.type != "Embedding" &&
             std::ranges::any_of(module.parameters, [&unit](uint32_t parameter) {
               return std::ranges::find(unit.parameters, parameter) != unit.parameters.end();
             });
    });
  }

  // The plan's units with a separate entry for each.
  [[nodiscard]] std::vector<plan::UnitEntry> listed_units() const {
    std::vector<plan::UnitEntry> out;
    for (const plan::Unit& unit : now_.units) {
      if (unit.modules.empty() || unit.group > 0) {
        continue;
      }
      out.push_back(plan::own_entry(now_, unit));
    }
    return out;
  }

  void prefetch() {
    const bool lists =
        std::any_of(now_.units.begin(), now_.units.end(),
                    [](const plan::Unit& unit) { return unit.has_forward_prefetch_list; });
    const bool explicit_lists = lists && now_.plan.forward_prefetch == 0;
    const int64_t most = now_.plan.dialect == plan::Dialect::kFsdp1 ? 1 : 2;
    for (int64_t depth = 0; depth <= most; ++depth) {
      if (now_.plan.forward_prefetch == depth && !explicit_lists) {
        continue;
      }
      add(edits_.forward_prefetch(depth));
    }
    if (now_.plan.backward_prefetch != plan::BackwardPrefetch::kPre ||
        !now_.plan.backward_prefetch_lists.empty()) {
      add(edits_.backward_prefetch(plan::BackwardPrefetch::kPre));
    }
  }

  // PyTorch's FSDP1 has one group for both.
  void communicators() {
    if (now_.plan.dialect == plan::Dialect::kFsdp2 && !now_.plan.separate_reduce_scatter_group) {
      add(edits_.separate_reduce_scatter_group());
    }
    if (now_.plan.dialect == plan::Dialect::kFsdp2 &&
        now_.plan.reduce_scatter_max_input_buffers == 1) {
      add(edits_.reduction_inputs(2));
    }
  }

  // Modules of each unit, sorted.
  [[nodiscard]] static std::set<std::set<std::string>> division(
      const std::vector<plan::UnitEntry>& units) {
    std::set<std::set<std::string>> out;
    for (const plan::UnitEntry& entry : units) {
      out.emplace(entry.globs.begin(), entry.globs.end());
    }
    return out;
  }

  // The groups of parameters of all units that have several, for a unit of any of their modules:
  // globs that match no parameter of a unit make no group in it.
  [[nodiscard]] static std::vector<plan::ParameterGroupEntry> common_groups(
      const std::vector<plan::UnitEntry>& units) {
    std::vector<plan::ParameterGroupEntry> out;
    for (const plan::UnitEntry& entry : units) {
      if (entry.groups.size() == 1) {
        continue;
      }
      for (const plan::ParameterGroupEntry& group : entry.groups) {
        const auto same = std::ranges::find_if(out, [&](const auto& each) {
          return each.expert == group.expert && each.shard_dim == group.shard_dim;
        });
        plan::ParameterGroupEntry& all = same == out.end() ? out.emplace_back(group) : *same;
        for (const std::string& glob : group.parameters) {
          if (std::ranges::find(all.parameters, glob) == all.parameters.end()) {
            all.parameters.push_back(glob);
          }
        }
      }
    }
    // The first group that matches has a parameter: one for all that is left comes last.
    std::stable_partition(out.begin(), out.end(), [](const plan::ParameterGroupEntry& group) {
      return std::ranges::find(group.parameters, "**") == group.parameters.end();
    });
    return out;
  }

  void set_units(size_t together) {
    std::vector<plan::UnitEntry> wanted = plan::grouped_blocks(tree_, together);
    const std::vector<plan::UnitEntry> listed = listed_units();
    const std::vector<plan::ParameterGroupEntry> groups = common_groups(listed);
    for (plan::UnitEntry& entry : wanted) {
      entry.groups = groups;
    }
    // Units whose parameters are all on the experts' mesh stay units of their own.
    const size_t merged = wanted.size();
    for (const plan::UnitEntry& entry : listed) {
      if (entry.groups.size() == 1) {
        wanted.push_back(entry);
      }
    }
    if (division(wanted) == division(listed)) {
      return;
    }
    const bool has_experts = wanted.size() > merged;
    PlanEdit edit = edits_.units(together, wanted);
    edit.title += has_experts ? ", experts as their own" : "";
    add(std::move(edit));
  }

  void units() {
    for (const size_t together : {1, 2, 4}) {
      if (together == 1 ? !tree_.blocks.empty() : together < tree_.blocks.size()) {
        set_units(together);
      }
    }
    if (now_.units.size() > 1) {
      set_units(0);
    }
    own_units();
  }

  // The largest modules outside the blocks that the root owns, as units of their own.
  void own_units() {
    std::vector<std::string> own;
    for (const uint32_t module : plan::large_modules(tree_, now_.units.front().parameters)) {
      own.push_back(tree_.modules[module].fqn);
    }
    if (own.empty() || now_.units.size() < 2 || now_.plan.units.empty()) {
      return;
    }
    add(edits_.own_units(own));
  }

  // Other degrees of data parallelism. Those of the other axes are the program's.
  void mesh() {
    const plan::MeshSizes& sizes = now_.plan.mesh;
    const int64_t ranks = now_.world_size / (sizes.context * sizes.tensor);
    // FSDP1 has another sharding strategy for replicas only.
    for (int64_t shard = now_.plan.dialect == plan::Dialect::kFsdp2 ? 1 : 2; shard <= ranks;
         ++shard) {
      // The ranks of a replica have all experts.
      const int64_t replica = shard * sizes.context * sizes.tensor;
      if (ranks % shard != 0 || shard * sizes.context == now_.shards() ||
          replica % sizes.expert != 0) {
        continue;
      }
      add(edits_.mesh(ranks / shard, shard, sizes.tensor, sizes.context));
    }
    if (!plan::divided_axis(sizes).first.empty()) {
      return;  // DDP has no such axes
    }
    add(edits_.strategy("replicate", "replicate"));
  }

  void checkpoints() {
    const size_t checkpointed = now_.checkpointed_modules.size(), blocks = tree_.blocks.size();
    const auto set = [this](size_t every) {
      if (now_.plan.activation_checkpointing != plan::checkpointed_blocks(tree_, every)) {
        add(edits_.checkpoints(every));
      }
    };
    if (checkpointed > 0) {
      set(0);
    }
    if (blocks > 0 && checkpointed != blocks) {
      set(1);
    }
    if (blocks >= 2 && checkpointed != (blocks + 1) / 2) {
      set(2);
    }
  }

  void microbatches() {
    const int64_t samples = step_.samples();
    for (int64_t batch = 1; batch <= samples; ++batch) {
      // Neighbours of the present size: each division of a large step would be a long list.
      if (samples % batch != 0 || batch == step_.batch ||
          (batch != 2 * step_.batch && 2 * batch != step_.batch && batch != samples)) {
        continue;
      }
      add(edits_.microbatches(batch, samples / batch));
    }
    if (step_.accumulate > 1 && step_.sync_every_microbatch) {
      add(edits_.sync_last_microbatch());
    }
  }

  void buckets() {
    const double now = now_.plan.bucket_cap_mb.value_or(25);
    for (const double megabytes : {10.0, 25.0, 50.0, 100.0}) {
      if (megabytes != now) {
        add(edits_.buckets(megabytes));
      }
    }
  }

  const plan::ModuleTree& tree_;
  const plan::ResolvedPlan& now_;
  const plan::StepSettings& step_;
  plan::PlanEdits edits_;
  bool sharded_;
  std::vector<PlanEdit> out_;
};

}  // namespace

void make(const PlanEdit& change, Scenario& scenario) {
  if (change.apply) {
    change.apply(scenario.plan);
  }
  if (change.apply_to_step) {
    change.apply_to_step(scenario.step);
  }
}

std::vector<PlanEdit> single_changes(const Scenario& scenario, const plan::ResolvedPlan& plan) {
  return Changes(scenario, plan).take();
}

}  // namespace shardlens::sim
