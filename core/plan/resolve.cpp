#include <algorithm>
#include <set>
#include <string>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/plan/glob.h"
#include "core/plan/json_reader.h"
#include "core/plan/plan.h"

namespace shardlens::plan {
namespace {

constexpr int64_t kMostRanks = 65536;
constexpr uint32_t kNone = 0xffffffffU;
constexpr std::string_view kContainer = "ModuleList";

// Names that a glob could have meant: every FQN, and with block numbers replaced by `*`.
std::string nearest_glob(std::string_view glob, const std::vector<std::string>& fqns) {
  std::vector<std::string> candidates = fqns;
  std::set<std::string> generic;
  for (const std::string& fqn : fqns) {
    std::string text;
    bool number = true;
    std::string component;
    for (size_t i = 0; i <= fqn.size(); ++i) {
      if (i == fqn.size() || fqn[i] == '.') {
        text += (number && !component.empty() ? "*" : component) + (i == fqn.size() ? "" : ".");
        component.clear();
        number = true;
      } else {
        component += fqn[i];
        number = number && fqn[i] >= '0' && fqn[i] <= '9';
      }
    }
    generic.insert(text);
  }
  candidates.insert(candidates.end(), generic.begin(), generic.end());
  return suggestion(glob, candidates);
}

class Resolver {
 public:
  Resolver(const Plan& plan, const ModuleTree& tree, int64_t world_size)
      : plan_(plan), tree_(tree) {
    out_.plan = plan;
    out_.tree = tree;
    out_.world_size = world_size;
    for (const Module& module : tree.modules) {
      module_fqns_.push_back(module.fqn);
    }
    for (const Parameter& parameter : tree.parameters) {
      parameter_fqns_.push_back(parameter.fqn);
    }
  }

  ResolvedPlan run() {
    set_mesh();
    find_ignored();
    match_entries();
    make_units();
    own_parameters();
    check_sub_meshes();
    set_prefetch_lists("forward_prefetch", plan_.forward_prefetch_lists, &Unit::forward_prefetch,
                       &Unit::has_forward_prefetch_list);
    set_prefetch_lists("backward_prefetch", plan_.backward_prefetch_lists, &Unit::backward_prefetch,
                       &Unit::has_backward_prefetch_list);
    expand_forward_depth();
    find_checkpointed();
    return std::move(out_);
  }

 private:
  // The modules of a unit to be, and the entry that named them (-1: none).
  struct Group {
    int32_t entry;
    std::vector<uint32_t> modules;
  };

  [[noreturn]] void fail(const std::string& pointer, const std::string& message) const {
    throw InputError(plan_.source + "#" + pointer, message);
  }

  [[nodiscard]] static std::string shown(std::string_view fqn) {
    return fqn.empty() ? "the root ('')" : fmt::format("'{}'", fqn);
  }

  void set_mesh() {
    const int64_t world = out_.world_size;
    if (world < 1 || world > kMostRanks) {
      throw InputError("", fmt::format("world size {}: expected 1 to {}", world, kMostRanks));
    }
    // shard = 1 alone is no_shard: every rank is a replica.
    const bool no_shard = plan_.mesh_shard == 1 && !plan_.mesh_replicate;
    out_.replicate = no_shard ? world : plan_.mesh_replicate.value_or(1);
    out_.shard = plan_.mesh_shard.value_or(std::max<int64_t>(1, world / out_.replicate));
    if (out_.replicate * out_.shard != world) {
      const std::string fit =
          world % out_.shard == 0 && plan_.mesh_shard
              ? fmt::format("; with shard {} expected replicate {}", out_.shard, world / out_.shard)
              : "; expected two factors of the world size";
      fail("/mesh",
           fmt::format("replicate {} x shard {} = {} ranks, but the world size is {}{}",
                       out_.replicate, out_.shard, out_.replicate * out_.shard, world, fit));
    }
  }

  // Modules that `glob` matches, pre-order; fails when there are none.
  [[nodiscard]] std::vector<uint32_t> matches(const std::string& glob,
                                              const std::string& pointer) const {
    std::vector<uint32_t> found;
    for (uint32_t i = 0; i < tree_.modules.size(); ++i) {
      const bool skipped = has_wildcard(glob) && tree_.modules[i].type == kContainer;
      if (!skipped && glob_matches(glob, tree_.modules[i].fqn)) {
        found.push_back(i);
      }
    }
    if (found.empty()) {
      fail(pointer,
           fmt::format(
               "glob '{}' matches no module; expected FQNs as in '{}'{}", glob,
               tree_.modules[tree_.blocks.empty() ? tree_.modules.size() - 1 : tree_.blocks[0]].fqn,
               nearest_glob(glob, module_fqns_)));
    }
    return found;
  }

  void find_ignored() {
    ignored_module_.assign(tree_.modules.size(), false);
    ignored_parameter_.assign(tree_.parameters.size(), false);
    for (size_t i = 0; i < plan_.ignored_modules.size(); ++i) {
      for (const uint32_t module :
           matches(plan_.ignored_modules[i], fmt::format("/ignored_modules/{}", i))) {
        ignored_module_[module] = true;
      }
    }
    for (uint32_t i = 0; i < tree_.modules.size(); ++i) {
      const Module& module = tree_.modules[i];
      ignored_module_[i] = ignored_module_[i] || ignored_module_[module.parent];
      for (const uint32_t parameter : module.parameters) {
        ignored_parameter_[parameter] = ignored_parameter_[parameter] || ignored_module_[i];
      }
    }
    for (size_t i = 0; i < plan_.ignored_parameters.size(); ++i) {
      const std::string& glob = plan_.ignored_parameters[i];
      bool found = false;
      for (size_t k = 0; k < tree_.parameters.size(); ++k) {
        const Parameter& parameter = tree_.parameters[k];
        const auto matched = [&glob](const std::string& fqn) { return glob_matches(glob, fqn); };
        if (matched(parameter.fqn) ||
            std::any_of(parameter.aliases.begin(), parameter.aliases.end(), matched)) {
          ignored_parameter_[k] = true;
          found = true;
        }
      }
      if (!found) {
        fail(fmt::format("/ignored_parameters/{}", i),
             fmt::format("glob '{}' matches no parameter{}", glob,
                         nearest_glob(glob, parameter_fqns_)));
      }
    }
    for (uint32_t k = 0; k < tree_.parameters.size(); ++k) {
      if (ignored_parameter_[k]) {
        out_.ignored_parameters.push_back(k);
      }
    }
  }

  // Fills groups_: the modules of each unit to be, in the order in which the entry names them.
  void match_entries() {
    entry_of_.assign(tree_.modules.size(), kNone);
    if (plan_.units.empty()) {
      for (const uint32_t block : tree_.blocks) {
        groups_.push_back({-1, {block}});
      }
      groups_.push_back({-1, {0}});
      return;
    }
    for (size_t e = 0; e < plan_.units.size(); ++e) {
      const UnitEntry& entry = plan_.units[e];
      std::vector<uint32_t> group;
      for (size_t g = 0; g < entry.globs.size(); ++g) {
        const std::string pointer = entry.grouped ? fmt::format("/units/{}/modules/{}", e, g)
                                                  : fmt::format("/units/{}/modules", e);
        for (const uint32_t module : matches(entry.globs[g], pointer)) {
          if (claim(module, static_cast<uint32_t>(e), pointer)) {
            group.push_back(module);
          }
        }
      }
      if (entry.grouped) {
        groups_.push_back({static_cast<int32_t>(e), outermost(group)});
      } else {
        for (const uint32_t module : group) {
          groups_.push_back({static_cast<int32_t>(e), {module}});
        }
      }
    }
  }

  // False if the same entry has it already; fails if another entry has.
  bool claim(uint32_t module, uint32_t entry, const std::string& pointer) {
    const Module& m = tree_.modules[module];
    if (entry_of_[module] == entry) {
      return false;
    }
    if (entry_of_[module] != kNone) {
      fail(pointer,
           fmt::format("module {} is matched by two entries, this one and units/{}; expected one",
                       shown(m.fqn), entry_of_[module]));
    }
    if (m.type == kContainer) {
      fail(pointer,
           fmt::format("module {} is a {} and has no forward; expected its children, as '{}.*'",
                       shown(m.fqn), m.type, m.fqn));
    }
    if (ignored_module_[module]) {
      fail(pointer, fmt::format("module {} is in ignored_modules as well; expected one of the two",
                                shown(m.fqn)));
    }
    entry_of_[module] = entry;
    return true;
  }

  // Without modules that lie inside another of the group, as PyTorch keeps only root modules of a
  // list.
  [[nodiscard]] std::vector<uint32_t> outermost(const std::vector<uint32_t>& group) const {
    const std::set<uint32_t> members(group.begin(), group.end());
    std::vector<uint32_t> out;
    for (const uint32_t module : group) {
      bool inside = false;
      for (uint32_t at = module; at != 0 && !inside;) {
        at = tree_.modules[at].parent;
        inside = members.contains(at);
      }
      if (!inside) {
        out.push_back(module);
      }
    }
    return out;
  }

  void make_units() {
    std::sort(groups_.begin(), groups_.end(), [](const Group& a, const Group& b) {
      return *std::min_element(a.modules.begin(), a.modules.end()) <
             *std::min_element(b.modules.begin(), b.modules.end());
    });
    if (groups_.empty() || groups_.front().modules != std::vector<uint32_t>{0}) {
      groups_.insert(groups_.begin(), Group{-1, {0}});
    }
    unit_of_.assign(tree_.modules.size(), kNone);
    for (UnitId id = 0; id < groups_.size(); ++id) {
      out_.units.push_back(make_unit(groups_[id]));
      for (const uint32_t module : groups_[id].modules) {
        unit_of_[module] = id;
      }
    }
    for (uint32_t i = 1; i < tree_.modules.size(); ++i) {
      if (unit_of_[i] == kNone) {
        unit_of_[i] = unit_of_[tree_.modules[i].parent];
      }
    }
    for (UnitId id = 1; id < out_.units.size(); ++id) {
      out_.units[id].parent = enclosing_unit(out_.units[id]);
    }
  }

  [[nodiscard]] Unit make_unit(const Group& group) const;

  // The innermost unit around every module of `unit`.
  [[nodiscard]] UnitId enclosing_unit(const Unit& unit) const {
    const auto chain = [this](uint32_t module) {
      std::vector<UnitId> out;
      for (uint32_t at = module; at != 0;) {
        at = tree_.modules[at].parent;
        if (out.empty() || out.back() != unit_of_[at]) {
          out.push_back(unit_of_[at]);
        }
      }
      return out;
    };
    for (const UnitId candidate : chain(unit.modules.front())) {
      const bool around_all =
          std::all_of(unit.modules.begin(), unit.modules.end(), [&](uint32_t module) {
            const auto units = chain(module);
            return std::find(units.begin(), units.end(), candidate) != units.end();
          });
      if (around_all) {
        return candidate;
      }
    }
    return 0;
  }

  void own_parameters();
  void own_subtree(UnitId id, uint32_t module, std::vector<uint32_t>& first_owner);

  void check_sub_meshes() {
    for (Unit& unit : out_.units) {
      Reshard& reshard = unit.reshard_after_forward;
      if (reshard.kind != Reshard::Kind::kSubMesh) {
        continue;
      }
      if (out_.shard % reshard.ranks != 0) {
        const bool own =
            unit.entry >= 0 && plan_.units[static_cast<size_t>(unit.entry)].reshard_after_forward;
        fail(own ? fmt::format("/units/{}/reshard_after_forward", unit.entry)
                 : "/reshard_after_forward",
             fmt::format("{} ranks; expected a factor of the shard axis, which has {}",
                         reshard.ranks, out_.shard));
      }
      if (reshard.ranks == out_.shard || reshard.ranks == 1) {
        reshard = {reshard.ranks == 1 && out_.shard > 1 ? Reshard::Kind::kNo : Reshard::Kind::kYes,
                   0};
      }
    }
  }

  [[nodiscard]] UnitId unit_named(const std::string& name, const std::string& pointer) const {
    std::vector<std::string> names;
    for (UnitId id = 0; id < out_.units.size(); ++id) {
      const Unit& unit = out_.units[id];
      names.push_back(unit.fqn);
      const bool member =
          std::any_of(unit.modules.begin(), unit.modules.end(),
                      [&](uint32_t module) { return tree_.modules[module].fqn == name; });
      if (unit.fqn == name || member) {
        return id;
      }
    }
    fail(pointer,
         fmt::format("'{}' is no unit; expected a unit's FQN{}", name, suggestion(name, names)));
  }

  void set_prefetch_lists(const std::string& key,
                          const PrefetchLists& lists,
                          std::vector<UnitId> Unit::*list,
                          bool Unit::*has_list) {
    for (const auto& [from, targets] : lists) {
      const std::string pointer = "/" + key + "/" + from;
      Unit& unit = out_.units[unit_named(from, pointer)];
      if (unit.*has_list) {
        fail(pointer, fmt::format("unit '{}' has two lists; expected one", unit.fqn));
      }
      unit.*has_list = true;
      for (size_t i = 0; i < targets.size(); ++i) {
        (unit.*list).push_back(unit_named(targets[i], fmt::format("{}/{}", pointer, i)));
      }
    }
  }

  // fsdp2 has explicit lists only; fsdp1 prefetches by itself, from the order it saw in the step
  // before.
  void expand_forward_depth() {
    if (plan_.dialect != Dialect::kFsdp2 || plan_.forward_prefetch == 0) {
      return;
    }
    std::vector<UnitId> gathered;  // in pre-order, the root's own left out
    for (UnitId id = 1; id < out_.units.size(); ++id) {
      if (out_.units[id].api == Api::kFullyShard && !out_.units[id].parameters.empty()) {
        gathered.push_back(id);
      }
    }
    for (UnitId id = 0; id < out_.units.size(); ++id) {
      Unit& unit = out_.units[id];
      const auto next = std::upper_bound(gathered.begin(), gathered.end(), id);
      const auto count = std::min<int64_t>(plan_.forward_prefetch, gathered.end() - next);
      if (unit.api == Api::kFullyShard && count > 0) {
        unit.forward_prefetch.assign(next, next + count);
        unit.has_forward_prefetch_list = true;
      }
    }
  }

  void find_checkpointed() {
    std::set<uint32_t> found;
    for (size_t i = 0; i < plan_.activation_checkpointing.size(); ++i) {
      const auto modules = matches(plan_.activation_checkpointing[i],
                                   fmt::format("/activation_checkpointing/{}", i));
      found.insert(modules.begin(), modules.end());
    }
    out_.checkpointed_modules.assign(found.begin(), found.end());
  }

  const Plan& plan_;
  const ModuleTree& tree_;
  ResolvedPlan out_;
  std::vector<std::string> module_fqns_, parameter_fqns_;
  std::vector<bool> ignored_module_, ignored_parameter_;
  std::vector<uint32_t> entry_of_;  // of each module; kNone
  std::vector<Group> groups_;
  std::vector<UnitId> unit_of_;  // nearest unit around each module
};

Unit Resolver::make_unit(const Group& group) const {
  static const UnitEntry kNoEntry;
  const UnitEntry& entry =
      group.entry < 0 ? kNoEntry : plan_.units[static_cast<size_t>(group.entry)];
  Unit unit;
  for (const uint32_t module : group.modules) {
    unit.fqn += (unit.modules.empty() ? "" : ", ") + tree_.modules[module].fqn;
    unit.modules.push_back(module);
  }
  unit.entry = group.entry;
  unit.api = entry.api;
  unit.reshard_after_forward = entry.reshard_after_forward.value_or(plan_.reshard_after_forward);
  unit.mixed_precision = entry.mixed_precision.value_or(plan_.mixed_precision);
  unit.cpu_offload = entry.cpu_offload.value_or(plan_.cpu_offload);
  unit.gradient_divide_factor =
      entry.gradient_divide_factor ? entry.gradient_divide_factor : plan_.gradient_divide_factor;
  unit.bucket_cap_mb = entry.bucket_cap_mb.value_or(plan_.bucket_cap_mb);
  unit.find_unused_parameters = entry.find_unused_parameters.value_or(plan_.find_unused_parameters);
  unit.static_graph = entry.static_graph.value_or(plan_.static_graph);
  unit.gradient_as_bucket_view =
      entry.gradient_as_bucket_view.value_or(plan_.gradient_as_bucket_view);
  return unit;
}

void Resolver::own_parameters() {
  // The root unit that no entry names may own nothing.
  const bool root_named = out_.units[0].entry >= 0 || plan_.units.empty();
  std::vector<uint32_t> first_owner(tree_.parameters.size(), kNone);
  for (UnitId id = 0; id < out_.units.size(); ++id) {
    for (const uint32_t module : out_.units[id].modules) {
      own_subtree(id, module, first_owner);
    }
  }
  if (!root_named && !out_.units[0].parameters.empty()) {
    const Parameter& parameter = tree_.parameters[out_.units[0].parameters.front()];
    fail("/units",
         fmt::format(
             "parameter '{}' is in no unit; expected every parameter in one, as with an entry "
             "{{\"modules\": \"\"}} for the root{}",
             parameter.fqn,
             out_.units[0].parameters.size() == 1
                 ? ""
                 : fmt::format(" ({} more are in none)", out_.units[0].parameters.size() - 1)));
  }
}

// Adds to unit `id` what the modules of the subtree own that have no unit of their own; a tied
// parameter counts once.
void Resolver::own_subtree(UnitId id, uint32_t module, std::vector<uint32_t>& first_owner) {
  std::vector<uint32_t> stack{module};
  while (!stack.empty()) {
    const uint32_t at = stack.back();
    stack.pop_back();
    if (unit_of_[at] == id) {
      for (const uint32_t parameter : tree_.modules[at].parameters) {
        if (ignored_parameter_[parameter]) {
          continue;
        }
        uint32_t& owner = first_owner[parameter];
        if (owner == kNone) {
          owner = at;
          out_.units[id].parameters.push_back(parameter);
        } else if (unit_of_[owner] != id) {
          fail("/units",
               fmt::format("parameter '{}' is tied across two units: {} owns it in unit {}, {} in "
                           "unit {}; expected both "
                           "modules in one unit, as {{\"modules\": [\"{}\", \"{}\"]}}",
                           tree_.parameters[parameter].fqn, shown(tree_.modules[owner].fqn),
                           shown(out_.units[unit_of_[owner]].fqn), shown(tree_.modules[at].fqn),
                           shown(out_.units[id].fqn), tree_.modules[owner].fqn,
                           tree_.modules[at].fqn));
        }
      }
    }
    const auto& children = tree_.modules[at].children;
    stack.insert(stack.end(), children.rbegin(), children.rend());
  }
}

}  // namespace

ResolvedPlan resolve(const Plan& plan, const ModuleTree& tree, int64_t world_size) {
  return Resolver(plan, tree, world_size).run();
}

ShardLayout ResolvedPlan::layout(UnitId unit) const {
  const Unit& u = units.at(unit);
  std::vector<std::vector<int64_t>> shapes;
  shapes.reserve(u.parameters.size());
  for (const uint32_t parameter : u.parameters) {
    shapes.push_back(tree.parameters[parameter].shape);
  }
  // replicate() has no flat parameter, hence no padding either.
  return u.api == Api::kReplicate ? ShardLayout(Layout::kPerParameter, shapes, 1, param_dtype(unit))
                                  : ShardLayout(plan.layout, shapes, shard, param_dtype(unit));
}

DType ResolvedPlan::param_dtype(UnitId unit) const {
  return units.at(unit).mixed_precision.param_dtype.value_or(DType::kF32);
}

// As in PyTorch: gradients are reduced in the dtype they have unless a reduce_dtype is given.
DType ResolvedPlan::reduce_dtype(UnitId unit) const {
  return units.at(unit).mixed_precision.reduce_dtype.value_or(param_dtype(unit));
}

}  // namespace shardlens::plan
