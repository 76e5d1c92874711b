#include "sim/calibrate/recorded_tree.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/plan/parameter_groups.h"
#include "core/workload/communications.h"
#include "profiler/trace/sharded_parameters.h"
#include "sim/calibrate/unit_of_module.h"

namespace shardlens::sim {
namespace {

using plan::WorkloadItem;

// Modules in order of their first appearance, then in pre-order.
class TreeBuilder {
 public:
  TreeBuilder() { nodes_.push_back({}); }

  void add(const std::string& fqn) {
    size_t at = 0;
    for (size_t start = 0; start < fqn.size();) {
      const size_t dot = std::min(fqn.find('.', start), fqn.size());
      at = child(at, fqn.substr(0, dot));
      start = dot + 1;
    }
    nodes_[at].is_unit = true;
  }

  plan::ModuleTree take() {
    emit(0, 0);
    return std::move(tree_);
  }

 private:
  struct Node {
    std::string fqn;
    std::vector<size_t> children;
    bool is_unit = false;
  };

  size_t child(size_t parent, const std::string& fqn) {
    const auto [it, fresh] = index_.try_emplace(fqn, nodes_.size());
    if (fresh) {
      nodes_.push_back({fqn, {}, false});
      nodes_[parent].children.push_back(it->second);
    }
    return it->second;
  }

  void emit(size_t node, uint32_t parent) {
    const auto index = static_cast<uint32_t>(tree_.modules.size());
    plan::Module& module = tree_.modules.emplace_back();
    module.fqn = nodes_[node].fqn;
    module.type = node == 0 || nodes_[node].is_unit ? "Recorded" : "ModuleList";
    module.parent = parent;
    if (nodes_[node].is_unit && node != 0) {
      tree_.blocks.push_back(index);
    }
    for (const size_t each : nodes_[node].children) {
      const auto next = static_cast<uint32_t>(tree_.modules.size());
      tree_.modules[index].children.push_back(next);
      emit(each, index);
    }
  }

  std::vector<Node> nodes_;
  std::map<std::string, size_t> index_;
  plan::ModuleTree tree_;
};

// FQNs of a unit of several modules, "a, b".
std::vector<std::string> parts_of(std::string_view unit) {
  const std::string fqn(plan::unit_of_group(unit));
  std::vector<std::string> parts;
  for (size_t start = 0;;) {
    const size_t end = fqn.find(", ", start);
    parts.push_back(fqn.substr(start, end - start));
    if (end == std::string::npos) {
      return parts;
    }
    start = end + 2;
  }
}

// Gradients become ready roughly in the reverse order of registration, as the Reducer expects; so
// the modules are registered in reverse.
plan::ModuleTree replicated_tree(const analysis::RecoveredPlan& recovered) {
  if (recovered.parameters.empty()) {
    throw InputError(recovered.plan.source,
                     "the trace has no sizes of DDP's all-reduces, so its buckets cannot be "
                     "simulated; record it with torch.profiler.profile(record_shapes=True)");
  }
  plan::ModuleTree tree;
  tree.modules.push_back({"", "Recorded", 0, {1}, {}});
  const std::string& first = recovered.parameters.front().module;
  tree.modules.push_back({first.substr(0, first.find('.')), "ModuleList", 0, {}, {}});
  for (size_t i = recovered.parameters.size(); i-- > 0;) {
    const analysis::RecoveredParameter& each = recovered.parameters[i];
    const auto module = static_cast<uint32_t>(tree.modules.size());
    const auto parameter = static_cast<uint32_t>(tree.parameters.size());
    tree.modules[1].children.push_back(module);
    tree.modules.push_back({each.module, "Recorded", 1, {}, {parameter}});
    tree.parameters.push_back(
        {each.module + ".gradient", {each.numel}, each.numel, module, {}, true});
  }
  return tree;
}

// The blocks of a program whose units are parameters are the modules around them that are numbered.
void find_blocks(const analysis::RecoveredPlan& recovered, plan::ModuleTree& tree) {
  std::set<std::string> blocks;
  for (const analysis::RecoveredUnit& unit : recovered.units) {
    for (const std::string& part : parts_of(unit.fqn)) {
      blocks.insert(trace::block_of_parameter(part));
    }
  }
  tree.blocks.clear();
  for (uint32_t i = 1; i < tree.modules.size(); ++i) {
    if (blocks.contains(tree.modules[i].fqn)) {
      tree.modules[i].type = "Recorded";
      tree.blocks.push_back(i);
    }
  }
}

// Over how many ranks the unit's parameters are divided before FSDP shards them, by its plan: over
// the expert axis. With tensor parallelism the trace does not say which parameters are divided, so
// the recovered plan divides none, and a rank's part counts as the whole.
int64_t divided_over(const analysis::RecoveredPlan& recovered,
                     const analysis::RecoveredUnit& unit) {
  if (plan::is_expert_group(unit.fqn)) {
    return recovered.plan.mesh.expert;
  }
  for (const plan::UnitEntry& entry : recovered.plan.units) {
    const bool expert = std::ranges::any_of(entry.groups, &plan::ParameterGroupEntry::expert);
    if (expert && entry.globs == parts_of(unit.fqn)) {
      return recovered.plan.mesh.expert;
    }
  }
  return 1;
}

// By hook and unit of the new plan: how many of the recorded hooks are one. A merged unit has the
// first pre-hook and the last post-hook of its members for each time that they are used. A member
// whose parameters are used without its forward (a head's weight in the loss) has no such hooks.
std::map<std::pair<Hook, UnitId>, int> merged_hooks(const plan::Workload& recorded,
                                                    const std::vector<UnitId>& now) {
  std::map<std::pair<Hook, UnitId>, std::map<UnitId, int>> by_member;
  for (const HookEvent& hook : recorded.hooks) {
    ++by_member[{hook.hook, now.at(hook.unit)}][hook.unit];
  }
  std::map<std::pair<Hook, UnitId>, int> out;
  for (const auto& [hook, members] : by_member) {
    int all = 0;
    for (const auto& [member, times] : members) {
      all += times;
    }
    const auto count = static_cast<int>(members.size());
    out[hook] = all % count == 0 ? count : all;
  }
  return out;
}

}  // namespace

plan::ModuleTree recorded_tree(const analysis::RecoveredPlan& recovered) {
  if (recovered.replicated()) {
    return replicated_tree(recovered);
  }
  TreeBuilder builder;
  for (const analysis::RecoveredUnit& unit : recovered.units) {
    for (const std::string& part : parts_of(unit.fqn)) {
      builder.add(part);
    }
  }
  plan::ModuleTree tree = builder.take();
  if (recovered.source == analysis::FsdpSource::kProgram) {
    find_blocks(recovered, tree);
  }
  bool sized = false;
  for (uint32_t i = 0; i < tree.modules.size(); ++i) {
    for (const analysis::RecoveredUnit& unit : recovered.units) {
      if (parts_of(unit.fqn).front() != tree.modules[i].fqn || unit.padded_numel <= 0) {
        continue;
      }
      sized = true;
      plan::Parameter parameter;
      parameter.fqn = tree.modules[i].fqn + (i == 0 ? "" : ".") +
                      (plan::is_expert_group(unit.fqn) ? "experts.parameters" : "parameters");
      // The trace has the size of a rank's part.
      parameter.numel = unit.padded_numel * divided_over(recovered, unit);
      parameter.shape = {parameter.numel};
      parameter.module = i;
      tree.modules[i].parameters.push_back(static_cast<uint32_t>(tree.parameters.size()));
      tree.parameters.push_back(std::move(parameter));
    }
  }
  if (!sized) {
    throw InputError(recovered.plan.source,
                     "the trace has no sizes of FSDP's collectives, so its units cannot be "
                     "simulated; record it with torch.profiler.profile(record_shapes=True)");
  }
  return tree;
}

plan::Workload rewrapped(const plan::Workload& recorded,
                         const plan::ResolvedPlan& recorded_plan,
                         const plan::ResolvedPlan& plan) {
  const UnitOfModule units(plan);
  std::vector<UnitId> now;  // by recorded unit
  std::vector<int> members(plan.units.size(), 0);
  for (const plan::Unit& unit : recorded_plan.units) {
    now.push_back(units.of(unit.fqn));
    ++members[now.back()];
  }
  for (UnitId unit = 0; unit < plan.units.size(); ++unit) {
    if (members[unit] == 0 && !plan.units[unit].parameters.empty()) {
      throw InputError(
          plan.plan.source,
          "the trace does not say which operators belong to the unit " + plan.units[unit].fqn +
              ", because it was not a unit when the run was recorded: units can be merged, but not "
              "divided; record the run with this unit to divide it");
    }
  }
  plan::Workload out;
  out.batch = recorded.batch;
  out.seq = recorded.seq;
  const std::map<std::pair<Hook, UnitId>, int> uses = merged_hooks(recorded, now);
  std::map<std::pair<Hook, UnitId>, int> seen;
  out.communications = recorded.communications;
  for (plan::Communication& each : out.communications) {
    each.unit = now.at(each.unit);
  }
  plan::change_groups(recorded_plan.groups, plan, out);
  std::vector<std::optional<WorkloadItem>> kept(recorded.order.size());
  for (size_t i = 0; i < recorded.order.size(); ++i) {
    const WorkloadItem& item = recorded.order[i];
    if (item.kind == WorkloadItem::Kind::kOperator) {
      plan::Operator op = recorded.operators[item.index];
      op.unit = now.at(op.unit);
      kept[i] = out.order.emplace_back(
          WorkloadItem{WorkloadItem::Kind::kOperator, static_cast<uint32_t>(out.operators.size())});
      out.operators.push_back(std::move(op));
      continue;
    }
    if (item.kind == WorkloadItem::Kind::kCommunication) {
      kept[i] = out.order.emplace_back(item);
      continue;
    }
    HookEvent hook = recorded.hooks[item.index];
    hook.unit = now.at(hook.unit);
    const bool begins = hook.hook == Hook::kPreForward || hook.hook == Hook::kPreBackward;
    const bool ends = hook.hook == Hook::kPostForward || hook.hook == Hook::kGradsReady;
    const int of_use = uses.at({hook.hook, hook.unit});
    const int count = ++seen[{hook.hook, hook.unit}];
    if ((begins && (count - 1) % of_use != 0) || (ends && count % of_use != 0)) {
      continue;
    }
    kept[i] = out.order.emplace_back(
        WorkloadItem{WorkloadItem::Kind::kHook, static_cast<uint32_t>(out.hooks.size())});
    out.hooks.push_back(hook);
  }
  plan::renumber_items(recorded.order, kept, out);
  return out;
}

}  // namespace shardlens::sim
