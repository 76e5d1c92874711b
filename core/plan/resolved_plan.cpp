#include "core/plan/resolved_plan.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/layout/box.h"

namespace shardlens::plan {
namespace {

// `has`: whether the layout has a parameter.
template <typename Has>
ShardLayout layout_of(const ResolvedPlan& plan, UnitId unit, int64_t rank, const Has& has) {
  const Unit& u = plan.units.at(unit);
  std::vector<std::vector<int64_t>> shapes;
  shapes.reserve(u.parameters.size());
  for (const uint32_t parameter : u.parameters) {
    if (has(parameter)) {
      std::vector<int64_t> shape = plan.local_shape(parameter, rank);
      // A layout divides the first dimension; only sizes matter to it.
      if (const int64_t dim = plan.placements[parameter].shard_dim; dim != 0) {
        std::rotate(shape.begin(), shape.begin() + dim, shape.end());
      }
      shapes.push_back(std::move(shape));
    }
  }
  // replicate() has no flat parameter, and so no padding.
  if (u.api == Api::kReplicate) {
    return {Layout::kPerParameter, shapes, 1, plan.param_dtype(unit)};
  }
  // FSDP1 pads to a multiple of its process group's size; with NO_SHARD the group has all replicas.
  return {plan.plan.layout,
          shapes,
          plan.groups[u.gather].size,
          plan.param_dtype(unit),
          ShardLayout::kAlignmentBytes,
          plan.groups[u.gather].size == 1 ? plan.replicas() : 1};
}

// Whether the parameter is one of the unit's last module, and whether of another module too.
struct Owners {
  bool last = false, others = false;
};

Owners owners_of(const ResolvedPlan& plan, UnitId unit, uint32_t parameter) {
  const Parameter& each = plan.tree.parameters[parameter];
  const std::string& last = plan.tree.modules[plan.units[unit].modules.back()].fqn;
  const auto is_last = [&last](const std::string& name) {
    return name.size() > last.size() && name.starts_with(last) && name[last.size()] == '.';
  };
  Owners out{is_last(each.fqn), !is_last(each.fqn)};
  for (const std::string& name : each.aliases) {
    (is_last(name) ? out.last : out.others) = true;
  }
  return out;
}

bool same_ranks(const mesh::Group& a, const mesh::Group& b) {
  return a.size == b.size && (a.stride == b.stride || a.size == 1);
}

}  // namespace

int64_t ResolvedPlan::most_shards() const {
  int64_t out = shards();
  for (const Unit& unit : units) {
    out = std::max(out, groups[unit.gather].size);
  }
  return out;
}

mesh::GroupId ResolvedPlan::group_named(std::string_view name) const {
  const auto found = std::ranges::find(groups, name, &mesh::Group::name);
  return found == groups.end() ? mesh::kNoGroup
                               : static_cast<mesh::GroupId>(found - groups.begin());
}

std::vector<int64_t> ResolvedPlan::local_shape(uint32_t parameter, int64_t rank) const {
  std::vector<int64_t> out = tree.parameters[parameter].shape;
  if (const Placement& placed = placements[parameter]; placed.group != mesh::kNoGroup) {
    const mesh::Group& group = groups[placed.group];
    int64_t& size = out[static_cast<size_t>(placed.dim)];
    const auto [begin, end] = chunk_of(size, group.size, group.position(rank));
    size = end - begin;
  }
  return out;
}

int64_t ResolvedPlan::local_numel(uint32_t parameter, int64_t rank) const {
  return placements[parameter].group == mesh::kNoGroup ? tree.parameters[parameter].numel
                                                       : numel_of(local_shape(parameter, rank));
}

ShardLayout ResolvedPlan::layout(UnitId unit, int64_t rank) const {
  return layout_of(*this, unit, rank, [](uint32_t) { return true; });
}

ShardLayout ResolvedPlan::reduced_layout(UnitId unit) const {
  const bool flat = plan.layout == Layout::kFlat && units.at(unit).api == Api::kFullyShard;
  const bool frozen_too = flat && !is_frozen(unit);
  return layout_of(*this, unit, /*rank=*/0, [&](uint32_t parameter) {
    return frozen_too || tree.parameters[parameter].requires_grad;
  });
}

ShardLayout ResolvedPlan::reduced_layout_of_last(UnitId unit) const {
  return layout_of(*this, unit, /*rank=*/0, [&](uint32_t parameter) {
    return tree.parameters[parameter].requires_grad && owners_of(*this, unit, parameter).last;
  });
}

ShardLayout ResolvedPlan::reduced_layout_of_others(UnitId unit) const {
  return layout_of(*this, unit, /*rank=*/0, [&](uint32_t parameter) {
    return tree.parameters[parameter].requires_grad && owners_of(*this, unit, parameter).others;
  });
}

bool ResolvedPlan::is_replicated() const {
  return std::ranges::all_of(units, [](const Unit& unit) { return unit.api == Api::kReplicate; });
}

bool ResolvedPlan::has_replicated_units() const {
  return std::ranges::any_of(units, [](const Unit& unit) { return unit.api == Api::kReplicate; });
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
    trained += each.requires_grad ? local_numel(parameter) : 0;
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

// As torchtitan and torchao 0.18 convert layers: not the head, and only sizes divisible by 16.
bool ResolvedPlan::gathers_float8(UnitId unit, uint32_t parameter) const {
  constexpr int64_t kDivisor = 16;
  const Parameter& of = tree.parameters[parameter];
  if (!units.at(unit).mixed_precision.gathers_float8 || of.shape.size() != 2 ||
      tree.modules[of.module].type != "Linear" || of.shape[0] % kDivisor != 0 ||
      of.shape[1] % kDivisor != 0) {
    return false;
  }
  uint32_t module = of.module;
  while (module != 0 && std::ranges::find(tree.blocks, module) == tree.blocks.end()) {
    module = tree.modules[module].parent;
  }
  return module != 0;
}

DType ResolvedPlan::unsharded_dtype(UnitId unit, uint32_t parameter) const {
  if (gathers_float8(unit, parameter)) {
    return DType::kU8;
  }
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

mesh::GroupId add_group(const mesh::Group& group, ResolvedPlan& plan) {
  const auto found = std::ranges::find(plan.groups, group.name, &mesh::Group::name);
  if (found != plan.groups.end()) {
    if (!same_ranks(*found, group)) {
      throw InputError(
          "", fmt::format("the group '{}' has {} ranks, {} apart; in the plan it has "
                          "{}, {} apart",
                          group.name, group.size, group.stride, found->size, found->stride));
    }
    return static_cast<mesh::GroupId>(found - plan.groups.begin());
  }
  if (plan.groups.size() >= mesh::kNoGroup) {
    throw InputError("", fmt::format("more than {} groups", mesh::kNoGroup));
  }
  plan.groups.push_back(group);
  return static_cast<mesh::GroupId>(plan.groups.size() - 1);
}

}  // namespace shardlens::plan
