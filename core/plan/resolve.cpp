#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/plan/plan_resolver.h"

namespace shardlens::plan {
Resolver::Resolver(const Plan& plan, const ModuleTree& tree, int64_t world_size)
    : plan_(plan), tree_(tree) {
  out_.plan = plan;
  out_.tree = tree;
  out_.world_size = world_size;
  for (uint32_t i = 0; i < tree.modules.size(); ++i) {
    module_of_.emplace(tree.modules[i].fqn, i);
  }
}

ResolvedPlan Resolver::run() {
  set_mesh();
  find_ignored();
  find_frozen();
  match_entries();
  make_units();
  own_parameters();
  settle_units();
  find_checkpointed();
  return std::move(out_);
}

Resolver::Resolver(const Plan& plan, ResolvedPlan resolved)
    : plan_(plan), tree_(out_.tree), out_(std::move(resolved)) {
  out_.plan = plan;
}

ResolvedPlan Resolver::run_settings() {
  set_mesh();
  for (Unit& unit : out_.units) {
    unit.forward_prefetch.clear();
    unit.backward_prefetch.clear();
    unit.has_forward_prefetch_list = unit.has_backward_prefetch_list = false;
    take_settings(unit);
  }
  settle_units();
  return std::move(out_);
}

// Checks and resolves the settings of units that depend on the mesh or on other units.
void Resolver::settle_units() {
  check_sub_meshes();
  set_groups();
  check_unshard_in_backward();
  set_prefetch_lists("forward_prefetch", plan_.forward_prefetch_lists, &Unit::forward_prefetch,
                     &Unit::has_forward_prefetch_list);
  set_prefetch_lists("backward_prefetch", plan_.backward_prefetch_lists, &Unit::backward_prefetch,
                     &Unit::has_backward_prefetch_list);
  expand_forward_depth();
}

void Resolver::fail(const std::string& pointer, const std::string& message) const {
  throw InputError(plan_.source + "#" + pointer, message);
}

std::string Resolver::shown(std::string_view fqn) {
  return fqn.empty() ? "the root ('')" : fmt::format("'{}'", fqn);
}

void Resolver::set_mesh() {
  const int64_t world = out_.world_size;
  if (world < 1 || world > kMostRanks) {
    throw InputError("", fmt::format("world size {}: expected 1 to {}", world, kMostRanks));
  }
  const int64_t context = plan_.mesh_context;
  const int64_t data = world / context;  // ranks along replicate and shard
  // Only shard = 1, without replicate, means no_shard: every rank is a replica.
  const bool no_shard = plan_.mesh_shard == 1 && !plan_.mesh_replicate && context == 1;
  const int64_t replicate = no_shard ? world : plan_.mesh_replicate.value_or(1);
  const int64_t shard = plan_.mesh_shard.value_or(std::max<int64_t>(1, data / replicate));
  if (replicate * shard * context != world) {
    const std::string fit =
        world % (shard * context) == 0 && plan_.mesh_shard
            ? fmt::format("; with shard {} expected replicate {}", shard, data / shard)
        : context == 1 ? "; expected two factors of the world size"
                       : "; expected three factors of the world size";
    fail("/mesh",
         fmt::format("replicate {} x shard {}{} = {} ranks, but the world size is {}{}", replicate,
                     shard, context == 1 ? "" : fmt::format(" x context {}", context),
                     replicate * shard * context, world, fit));
  }
  out_.mesh = mesh::Mesh({{std::string(mesh::kReplicate), replicate},
                          {std::string(mesh::kShard), shard},
                          {std::string(mesh::kContext), context}});
  // Parameters are sharded over the ranks of a context too: each has the whole model.
  out_.groups = {out_.mesh.group(mesh::kShard, mesh::kContext, std::string(mesh::kShard)),
                 out_.mesh.group(mesh::kReplicate)};
  if (context > 1) {
    out_.groups.push_back(out_.mesh.group(mesh::kContext));
  }
}

void Resolver::make_units() {
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

UnitId Resolver::enclosing_unit(const Unit& unit) const {
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

void Resolver::set_groups() {
  const int64_t shard = out_.shards();
  const auto add = [this](mesh::Group group) {
    const auto found = std::ranges::find(out_.groups, group);
    const auto id = static_cast<mesh::GroupId>(found - out_.groups.begin());
    if (found == out_.groups.end()) {
      out_.groups.push_back(std::move(group));
    }
    return id;
  };
  mesh::GroupId reduce = kShardGroup;
  if (plan_.separate_reduce_scatter_group && shard > 1) {
    mesh::Group own = out_.groups[kShardGroup];
    own.name = "reduce_scatter";
    own.separate = true;
    reduce = add(std::move(own));
  }
  for (Unit& unit : out_.units) {
    const Reshard& reshard = unit.reshard_after_forward;
    unit.reduce = reduce;
    unit.kept = reshard.kind == Reshard::Kind::kSubMesh
                    ? add(mesh::part_of(out_.groups[unit.gather], reshard.ranks,
                                        fmt::format("sub_shard{}", reshard.ranks)))
                    : mesh::kNoGroup;
  }
}

void Resolver::check_sub_meshes() {
  const int64_t shard = out_.shards();
  for (Unit& unit : out_.units) {
    Reshard& reshard = unit.reshard_after_forward;
    if (reshard.kind != Reshard::Kind::kSubMesh) {
      continue;
    }
    if (shard % reshard.ranks != 0) {
      const bool own =
          unit.entry >= 0 && plan_.units[static_cast<size_t>(unit.entry)].reshard_after_forward;
      fail(own ? fmt::format("/units/{}/reshard_after_forward", unit.entry)
               : "/reshard_after_forward",
           fmt::format("{} ranks; expected a divisor of the size of the shard axis, {}",
                       reshard.ranks, shard));
    }
    if (reshard.ranks == shard || reshard.ranks == 1) {
      reshard = {reshard.ranks == 1 && shard > 1 ? Reshard::Kind::kNo : Reshard::Kind::kYes, 0};
    }
  }
}

// A backward that needs the parameters would otherwise read freed memory.
void Resolver::check_unshard_in_backward() const {
  for (const Unit& unit : out_.units) {
    if (unit.unshard_in_backward) {
      continue;
    }
    for (const Module& module : tree_.modules) {
      for (const uint32_t parameter : module.parameters) {
        if (module.type != "Embedding" && std::ranges::count(unit.parameters, parameter) > 0) {
          fail(fmt::format("/units/{}/unshard_in_backward", unit.entry),
               fmt::format("the backward of {} ({}) needs parameter '{}'; expected a unit with "
                           "only embeddings",
                           shown(module.fqn), module.type, tree_.parameters[parameter].fqn));
        }
      }
    }
  }
}

Unit Resolver::make_unit(const Group& group) const {
  Unit unit;
  for (const uint32_t module : group.modules) {
    unit.fqn += (unit.modules.empty() ? "" : ", ") + tree_.modules[module].fqn;
    unit.modules.push_back(module);
  }
  unit.entry = group.entry;
  take_settings(unit);
  return unit;
}

// Sets the settings of the unit to those of its entry or, if not given there, to the plan's.
void Resolver::take_settings(Unit& unit) const {
  static const UnitEntry kNoEntry;
  const UnitEntry& entry = unit.entry < 0 ? kNoEntry : plan_.units[static_cast<size_t>(unit.entry)];
  unit.api = entry.api;
  unit.reshard_after_forward = entry.reshard_after_forward.value_or(plan_.reshard_after_forward);
  unit.mixed_precision = entry.mixed_precision.value_or(plan_.mixed_precision);
  unit.reshard_after_backward = entry.reshard_after_backward.value_or(plan_.reshard_after_backward);
  unit.requires_all_reduce = entry.requires_all_reduce.value_or(plan_.requires_all_reduce);
  unit.unshard_in_backward = entry.unshard_in_backward.value_or(true);
  unit.cpu_offload = unit.api == Api::kFullyShard && entry.cpu_offload.value_or(plan_.cpu_offload);
  unit.optimizer_in_backward = unit.api == Api::kFullyShard &&
                               entry.optimizer_in_backward.value_or(plan_.optimizer_in_backward);
  if (unit.cpu_offload && unit.optimizer_in_backward) {
    fail(entry.optimizer_in_backward ? fmt::format("/units/{}/optimizer_in_backward", unit.entry)
                                     : "/optimizer_in_backward",
         fmt::format("unit {} has cpu_offload, so its gradient is on the host only at the end of "
                     "backward; expected one of the two keys",
                     shown(unit.fqn)));
  }
  unit.gradient_divide_factor =
      entry.gradient_divide_factor ? entry.gradient_divide_factor : plan_.gradient_divide_factor;
  unit.bucket_cap_mb = entry.bucket_cap_mb ? entry.bucket_cap_mb : plan_.bucket_cap_mb;
  unit.find_unused_parameters = entry.find_unused_parameters.value_or(plan_.find_unused_parameters);
  unit.static_graph = entry.static_graph.value_or(plan_.static_graph);
  unit.gradient_as_bucket_view =
      entry.gradient_as_bucket_view.value_or(plan_.gradient_as_bucket_view);
}

void Resolver::own_parameters() {
  // If no entry names the root, the root unit must not own parameters.
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
             "parameter '{}' is in no unit; expected every parameter in a unit, for example with "
             "an entry {{\"modules\": \"\"}} for the root{}",
             parameter.fqn,
             out_.units[0].parameters.size() == 1
                 ? ""
                 : fmt::format(" ({} more are in no unit)", out_.units[0].parameters.size() - 1)));
  }
}

// Adds to unit `id` the parameters of the subtree's modules that belong to no nested unit; a tied
// parameter once.
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
                           "unit {}; expected both modules in one unit, for example "
                           "{{\"modules\": [\"{}\", \"{}\"]}}",
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

ResolvedPlan resolve(const Plan& plan, const ModuleTree& tree, int64_t world_size) {
  return Resolver(plan, tree, world_size).run();
}

namespace {

ShardLayout layout_of(const ResolvedPlan& plan, UnitId unit, bool frozen_too) {
  const Unit& u = plan.units.at(unit);
  std::vector<std::vector<int64_t>> shapes;
  shapes.reserve(u.parameters.size());
  for (const uint32_t parameter : u.parameters) {
    if (frozen_too || plan.tree.parameters[parameter].requires_grad) {
      shapes.push_back(plan.tree.parameters[parameter].shape);
    }
  }
  // replicate() has no flat parameter, and so no padding.
  if (u.api == Api::kReplicate) {
    return {Layout::kPerParameter, shapes, 1, plan.param_dtype(unit)};
  }
  // FSDP1 pads to a multiple of its process group's size; with NO_SHARD the group has all ranks.
  return {plan.plan.layout,
          shapes,
          plan.groups[u.gather].size,
          plan.param_dtype(unit),
          ShardLayout::kAlignmentBytes,
          plan.shards() == 1 ? plan.world_size : 1};
}

}  // namespace

ShardLayout ResolvedPlan::layout(UnitId unit) const {
  return layout_of(*this, unit, /*frozen_too=*/true);
}

ShardLayout ResolvedPlan::reduced_layout(UnitId unit) const {
  const bool flat = plan.layout == Layout::kFlat && units.at(unit).api == Api::kFullyShard;
  return layout_of(*this, unit, flat && !is_frozen(unit));
}

bool ResolvedPlan::steps_in_backward() const {
  return std::ranges::any_of(units, [](const Unit& unit) { return unit.optimizer_in_backward; });
}

bool ResolvedPlan::is_frozen(UnitId unit) const {
  const std::vector<uint32_t>& parameters = units.at(unit).parameters;
  return !parameters.empty() && std::ranges::none_of(parameters, [this](uint32_t parameter) {
    return tree.parameters[parameter].requires_grad;
  });
}

int64_t ResolvedPlan::stepped_numel(UnitId unit) const {
  int64_t trained = 0;
  bool frozen = false;
  for (const uint32_t parameter : units.at(unit).parameters) {
    const Parameter& each = tree.parameters[parameter];
    trained += each.requires_grad ? each.numel : 0;
    frozen = frozen || !each.requires_grad;
  }
  const ShardLayout whole = layout(unit);
  return frozen ? (trained + whole.ranks() - 1) / whole.ranks() : whole.shard_numel();
}

DType ResolvedPlan::master_dtype(UnitId unit) const {
  const std::vector<uint32_t>& parameters = units.at(unit).parameters;
  const auto trained = std::ranges::find_if(
      parameters, [this](uint32_t each) { return tree.parameters[each].requires_grad; });
  return parameters.empty()
             ? DType::kF32
             : tree.parameters[trained == parameters.end() ? parameters.front() : *trained].dtype;
}

DType ResolvedPlan::param_dtype(UnitId unit) const {
  return units.at(unit).mixed_precision.param_dtype.value_or(master_dtype(unit));
}

DType ResolvedPlan::unsharded_dtype(UnitId unit, uint32_t parameter) const {
  return units.at(unit).mixed_precision.param_dtype.value_or(tree.parameters[parameter].dtype);
}

DType ResolvedPlan::gather_dtype(UnitId unit) const {
  const DType dtype = param_dtype(unit);
  return std::ranges::all_of(units.at(unit).parameters,
                             [&](uint32_t each) { return unsharded_dtype(unit, each) == dtype; })
             ? dtype
             : DType::kU8;
}

bool ResolvedPlan::casts_parameters(UnitId unit) const {
  return std::ranges::any_of(units.at(unit).parameters, [&](uint32_t each) {
    return unsharded_dtype(unit, each) != tree.parameters[each].dtype;
  });
}

// As in PyTorch, gradients are reduced in their own dtype unless a reduce_dtype is given.
DType ResolvedPlan::reduce_dtype(UnitId unit) const {
  return units.at(unit).mixed_precision.reduce_dtype.value_or(param_dtype(unit));
}

}  // namespace shardlens::plan
