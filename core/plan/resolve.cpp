#include <algorithm>

#include <fmt/format.h>

#include "core/base/divisors.h"
#include "core/base/error.h"
#include "core/plan/plan_resolver.h"
#include "core/plan/resolve_prefetch.h"

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
  set_dtype();
  find_ignored();
  find_frozen();
  match_entries();
  make_units();
  own_parameters();
  divide_units();
  settle_units();
  find_checkpointed();
  return std::move(out_);
}

Resolver::Resolver(Plan plan, ResolvedPlan resolved)
    : plan_(out_.plan), tree_(out_.tree), out_(std::move(resolved)) {
  out_.plan = std::move(plan);
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
  set_groups();
  place_parameters();
  check_unshard_in_backward();
  resolve_prefetch(out_);
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
  const int64_t context = plan_.mesh.context, tensor = plan_.mesh.tensor;
  const int64_t data = world / (context * tensor);  // ranks along replicate and shard
  // Only shard = 1, without replicate, means no_shard: all ranks along both are replicas.
  const bool no_shard = plan_.mesh.shard == 1 && !plan_.mesh.replicate && context == 1;
  const int64_t replicate = no_shard && data > 0 ? data : plan_.mesh.replicate.value_or(1);
  const int64_t shard = plan_.mesh.shard.value_or(std::max<int64_t>(1, data / replicate));
  if (replicate * shard * context * tensor != world) {
    const int factors = 2 + (context > 1 ? 1 : 0) + (tensor > 1 ? 1 : 0);
    const std::string fit =
        world % (shard * context * tensor) == 0 && plan_.mesh.shard
            ? fmt::format("; with shard {} expected replicate {}", shard, data / shard)
            : fmt::format("; expected {} factors of the world size", factors == 2   ? "two"
                                                                     : factors == 3 ? "three"
                                                                                    : "four");
    fail("/mesh",
         fmt::format("replicate {} x shard {}{}{} = {} ranks, but the world size is {}{}",
                     replicate, shard, context == 1 ? "" : fmt::format(" x context {}", context),
                     tensor == 1 ? "" : fmt::format(" x tensor {}", tensor),
                     replicate * shard * context * tensor, world, fit));
  }
  out_.mesh = mesh::Mesh({{std::string(mesh::kReplicate), replicate},
                          {std::string(mesh::kShard), shard},
                          {std::string(mesh::kContext), context},
                          {std::string(mesh::kTensor), tensor}});
  // Parameters are sharded over the ranks of a context too: each has the whole model.
  out_.groups = {out_.mesh.group(mesh::kShard, mesh::kContext, std::string(mesh::kShard)),
                 out_.mesh.group(mesh::kReplicate)};
  for (const std::string_view axis : {mesh::kContext, mesh::kTensor}) {
    if (out_.mesh.size(axis) > 1) {
      out_.groups.push_back(out_.mesh.group(axis));
    }
  }
  set_expert_mesh(world / replicate);
}

// `replica`: ranks of one replica.
void Resolver::set_expert_mesh(int64_t replica) {
  const int64_t expert = plan_.mesh.expert;
  out_.expert_mesh = {};
  if (expert == 1 && std::ranges::none_of(plan_.units, [](const UnitEntry& unit) {
        return std::ranges::any_of(unit.groups, &ParameterGroupEntry::expert);
      })) {
    return;
  }
  if (replica % expert != 0) {
    fail("/mesh/expert",
         fmt::format("expert {} does not divide the {} ranks of a replica; expected "
                     "{}",
                     expert, replica, one_of(divisors(replica))));
  }
  out_.expert_mesh = mesh::Mesh({{std::string(mesh::kReplicate), out_.mesh.size(mesh::kReplicate)},
                                 {std::string(mesh::kExpertShard), replica / expert},
                                 {std::string(mesh::kExpert), expert}});
  out_.groups.push_back(out_.expert_mesh.group(mesh::kExpertShard));
  if (expert > 1) {
    out_.groups.push_back(out_.expert_mesh.group(mesh::kExpert));
  }
}

// As Module.to(dtype): integers stay as they are. Optimizers make states like their parameters.
void Resolver::set_dtype() {
  for (Parameter& parameter : out_.tree.parameters) {
    if (plan_.dtype && is_floating(parameter.dtype)) {
      if (parameter.state_bytes) {
        *parameter.state_bytes *= static_cast<double>(size_of(*plan_.dtype)) /
                                  static_cast<double>(size_of(parameter.dtype));
      }
      parameter.dtype = *plan_.dtype;
    }
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
  if (unit.mixed_precision.gathers_float8 &&
      (unit.api != Api::kFullyShard || plan_.dialect == Dialect::kFsdp1)) {
    fail((entry.mixed_precision ? fmt::format("/units/{}", unit.entry) : "") +
             "/mixed_precision/gather_dtype",
         fmt::format("only all-gathers of FSDP2 can carry 8 bits; expected null for unit {}, or "
                     "dialect fsdp2 and api fully_shard",
                     shown(unit.fqn)));
  }
  unit.reshard_after_backward = entry.reshard_after_backward.value_or(plan_.reshard_after_backward);
  unit.requires_all_reduce = entry.requires_all_reduce.value_or(plan_.requires_all_reduce);
  unit.keep_unsharded_storage = entry.keep_unsharded_storage.value_or(plan_.keep_unsharded_storage);
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

}  // namespace shardlens::plan
