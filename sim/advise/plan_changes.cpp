#include "sim/advise/plan_changes.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/plan/grouped_blocks.h"
#include "core/plan/strategy_change.h"
#include "sim/advise/pytorch_calls.h"

namespace shardlens::sim {
namespace {

using plan::Plan;
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
        pytorch_(plan.tree, plan.plan.dialect),
        sharded_(std::any_of(plan.units.begin(), plan.units.end(), is_sharded)) {
    for (const uint32_t block : tree_.blocks) {
      blocks_.push_back(tree_.modules[block].fqn);
    }
  }

  std::vector<PlanChange> take() {
    if (sharded_) {
      if (now_.shards() > 1) {
        reshard();
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
  template <typename Edit>
  void add(std::vector<ChangeSubject> subjects,
           std::string title,
           PytorchCalls::Lines pytorch,
           Edit edit) {
    out_.push_back({std::move(subjects), std::move(title),
                    [edit = std::move(edit)](Scenario& scenario) { edit(scenario.plan); },
                    std::move(pytorch)});
  }

  // Whether the unit is sharded between forward and backward.
  [[nodiscard]] bool frees(size_t unit) const {
    const Reshard::Kind kind = now_.units[unit].reshard_after_forward.kind;
    return kind == Reshard::Kind::kYes || kind == Reshard::Kind::kSubMesh ||
           (kind == Reshard::Kind::kAuto && unit != 0);
  }

  static void set_reshard(Plan& plan, Reshard::Kind kind) {
    plan.reshard_after_forward = {kind, 0};
    for (plan::UnitEntry& entry : plan.units) {
      entry.reshard_after_forward.reset();
    }
  }

  void reshard() {
    bool any_freed = false, any_kept = false;
    for (size_t i = 1; i < now_.units.size(); ++i) {
      if (is_sharded(now_.units[i])) {
        (frees(i) ? any_freed : any_kept) = true;
      }
    }
    if (any_freed) {
      add({ChangeSubject::kReshard}, "keep parameters after forward", pytorch_.reshard(false),
          [](Plan& plan) { set_reshard(plan, Reshard::Kind::kNo); });
      keep_last();
    }
    if (any_kept) {
      add({ChangeSubject::kReshard}, "free parameters after forward", pytorch_.reshard(true),
          [](Plan& plan) { set_reshard(plan, Reshard::Kind::kAuto); });
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
      const std::vector<std::string> kept(freed.end() - static_cast<ptrdiff_t>(count), freed.end());
      add({ChangeSubject::kReshard},
          count == 1 ? fmt::format("keep the parameters of {} after forward", kept.front())
                     : fmt::format("keep the parameters of the last {} units after forward", count),
          pytorch_.keep(kept), keep(kept));
    }
  }

  // The plan's units with a separate entry for each.
  [[nodiscard]] std::vector<plan::UnitEntry> listed_units() const {
    std::vector<plan::UnitEntry> out;
    for (const plan::Unit& unit : now_.units) {
      if (unit.modules.empty() || unit.group > 0) {
        continue;
      }
      plan::UnitEntry entry;
      if (unit.entry >= 0) {
        entry = now_.plan.units[static_cast<size_t>(unit.entry)];
      }
      entry.grouped = unit.modules.size() > 1;
      entry.globs.clear();
      for (const uint32_t module : unit.modules) {
        entry.globs.push_back(tree_.modules[module].fqn);
      }
      out.push_back(std::move(entry));
    }
    return out;
  }

  // Without effect on a plan whose units another change has replaced.
  [[nodiscard]] std::function<void(Plan&)> keep(const std::vector<std::string>& kept) const {
    std::vector<plan::UnitEntry> units = listed_units();
    for (plan::UnitEntry& entry : units) {
      if (!entry.grouped &&
          std::find(kept.begin(), kept.end(), entry.globs.front()) != kept.end()) {
        entry.reshard_after_forward = Reshard{Reshard::Kind::kNo, 0};
      }
    }
    return [units = std::move(units), before = now_.plan.units](Plan& plan) {
      if (plan.units == before) {
        plan.units = units;
      }
    };
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
      add({ChangeSubject::kForwardPrefetch},
          depth == 0   ? "no prefetch in forward"
          : depth == 1 ? "prefetch the next unit in forward"
                       : fmt::format("prefetch the next {} units in forward", depth),
          pytorch_.forward_prefetch(depth), [depth](Plan& plan) {
            plan.forward_prefetch = depth;
            plan.forward_prefetch_lists.clear();
          });
    }
    if (now_.plan.backward_prefetch != plan::BackwardPrefetch::kPre ||
        !now_.plan.backward_prefetch_lists.empty()) {
      add({ChangeSubject::kBackwardPrefetch}, "prefetch the next unit before compute in backward",
          pytorch_.backward_prefetch(), [](Plan& plan) {
            plan.backward_prefetch = plan::BackwardPrefetch::kPre;
            plan.backward_prefetch_lists.clear();
          });
    }
  }

  // PyTorch's FSDP1 has one group for both.
  void communicators() {
    if (now_.plan.dialect == plan::Dialect::kFsdp2 && !now_.plan.separate_reduce_scatter_group) {
      add({ChangeSubject::kCommunicators}, "a communicator of its own for reduce-scatter",
          pytorch_.separate_reduce_scatter_group(),
          [](Plan& plan) { plan.separate_reduce_scatter_group = true; });
    }
  }

  // Modules of each unit, sorted.
  [[nodiscard]] static std::set<std::set<std::string>> division(const Plan& plan) {
    std::set<std::set<std::string>> out;
    for (const plan::UnitEntry& entry : plan.units) {
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
    std::ranges::stable_partition(out, [](const plan::ParameterGroupEntry& group) {
      return std::ranges::find(group.parameters, "**") == group.parameters.end();
    });
    return out;
  }

  void set_units(std::string title, size_t together) {
    Plan wanted;
    wanted.units = plan::grouped_blocks(tree_, together);
    const std::vector<plan::UnitEntry> listed = listed_units();
    const std::vector<plan::ParameterGroupEntry> groups = common_groups(listed);
    for (plan::UnitEntry& entry : wanted.units) {
      entry.groups = groups;
    }
    // Units whose parameters are all on the experts' mesh stay units of their own.
    const size_t merged = wanted.units.size();
    for (const plan::UnitEntry& entry : listed) {
      if (entry.groups.size() == 1) {
        wanted.units.push_back(entry);
      }
    }
    if (division(wanted) == units_now_) {
      return;
    }
    if (wanted.units.size() > merged) {
      title += ", experts as their own";
    }
    add({ChangeSubject::kUnits}, std::move(title), pytorch_.units(together),
        [units = wanted.units](Plan& plan) {
          plan.units = units;
          plan.forward_prefetch_lists.clear();
          plan.backward_prefetch_lists.clear();
        });
  }

  void units() {
    for (const plan::UnitEntry& entry : listed_units()) {
      units_now_.emplace(entry.globs.begin(), entry.globs.end());
    }
    if (!blocks_.empty()) {
      set_units("one block a unit", 1);
      for (const size_t together : {2, 4}) {
        if (together < blocks_.size()) {
          set_units(fmt::format("{} blocks a unit", together), together);
        }
      }
    }
    if (now_.units.size() > 1) {
      set_units("the model as one unit", 0);
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
    add({ChangeSubject::kUnits},
        fmt::format("{} as {} of {} own", fmt::join(own, ", "),
                    own.size() == 1 ? "a unit" : "units", own.size() == 1 ? "its" : "their"),
        pytorch_.own_units(own), [own](Plan& plan) {
          for (const std::string& fqn : own) {
            plan.units.emplace_back().globs = {fqn};
          }
        });
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
      const int64_t replicate = ranks / shard;
      add({ChangeSubject::kMesh},
          replicate == 1 ? fmt::format("shard over all {} ranks", ranks)
          : shard == 1   ? fmt::format("{} replicas, each with all parameters", ranks)
                         : fmt::format("{} replicas of {} shards", replicate, shard),
          pytorch_.mesh(replicate, shard, sizes.tensor), [replicate, shard](Plan& plan) {
            plan.mesh.replicate = replicate;
            plan.mesh.shard = shard;
          });
    }
    if (!plan::divided_axis(sizes).first.empty()) {
      return;  // DDP has no such axes
    }
    add({ChangeSubject::kUnits, ChangeSubject::kMesh, ChangeSubject::kReshard,
         ChangeSubject::kForwardPrefetch, ChangeSubject::kBackwardPrefetch},
        "replicate the model instead of sharding it", pytorch_.replicate(),
        [tree = tree_](Plan& plan) { plan = plan::with_strategy(plan, "replicate", tree); });
  }

  void checkpoints() {
    const size_t checkpointed = now_.checkpointed_modules.size();
    const auto set = [this](std::string title, size_t every) {
      std::vector<std::string> chosen;
      for (size_t i = 0; every > 0 && i < blocks_.size(); i += every) {
        chosen.push_back(blocks_[i]);
      }
      if (now_.plan.activation_checkpointing != chosen) {
        add({ChangeSubject::kCheckpoints}, std::move(title), pytorch_.checkpoints(every),
            [chosen](Plan& plan) { plan.activation_checkpointing = chosen; });
      }
    };
    if (checkpointed > 0) {
      set("no activation checkpoints", 0);
    }
    if (!blocks_.empty() && checkpointed != blocks_.size()) {
      set("checkpoint every block", 1);
    }
    if (blocks_.size() >= 2 && checkpointed != (blocks_.size() + 1) / 2) {
      set("checkpoint every second block", 2);
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
      const int64_t accumulate = samples / batch;
      out_.push_back({{ChangeSubject::kMicrobatches},
                      fmt::format("microbatches of {} ({} a step)", batch, accumulate),
                      [batch, accumulate](Scenario& scenario) {
                        scenario.step.batch = batch;
                        scenario.step.accumulate = accumulate;
                      },
                      pytorch_.microbatches(batch, accumulate)});
    }
    if (step_.accumulate > 1 && step_.sync_every_microbatch) {
      out_.push_back({{ChangeSubject::kGradientSync},
                      "reduce gradients only in the last microbatch",
                      [](Scenario& scenario) { scenario.step.sync_every_microbatch = false; },
                      pytorch_.sync_last_microbatch()});
    }
  }

  void buckets() {
    const double now = now_.plan.bucket_cap_mb.value_or(25);
    for (const double megabytes : {10.0, 25.0, 50.0, 100.0}) {
      if (megabytes != now) {
        add({ChangeSubject::kBuckets}, fmt::format("buckets of {} MiB", megabytes),
            pytorch_.buckets(megabytes), [megabytes](Plan& plan) {
              plan.bucket_cap_mb = megabytes;
              for (plan::UnitEntry& entry : plan.units) {
                entry.bucket_cap_mb.reset();
              }
            });
      }
    }
  }

  const plan::ModuleTree& tree_;
  const plan::ResolvedPlan& now_;
  const plan::StepSettings& step_;
  PytorchCalls pytorch_;
  bool sharded_;
  std::vector<std::string> blocks_;
  std::set<std::set<std::string>> units_now_;
  std::vector<PlanChange> out_;
};

}  // namespace

bool exclude_each_other(const PlanChange& a, const PlanChange& b) {
  return std::any_of(a.subjects.begin(), a.subjects.end(), [&b](ChangeSubject subject) {
    return std::find(b.subjects.begin(), b.subjects.end(), subject) != b.subjects.end();
  });
}

std::vector<PlanChange> single_changes(const Scenario& scenario, const plan::ResolvedPlan& plan) {
  return Changes(scenario, plan).take();
}

}  // namespace shardlens::sim
