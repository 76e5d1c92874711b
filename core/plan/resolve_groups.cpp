#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/json/json_reader.h"
#include "core/plan/parameter_groups.h"
#include "core/plan/plan_resolver.h"
#include "core/plan/tensor_styles.h"
#include "core/tree/glob.h"

namespace shardlens::plan {
namespace {

// Names of the groups that units on the experts' mesh have begin so.
std::string_view prefix_of(mesh::GroupId gather) {
  return gather == kShardGroup ? "" : "expert_";
}

bool is_matrix(const Parameter& parameter) {
  return parameter.shape.size() >= 2;
}

// The dimension that tensor parallelism divides; -1: none. Source: ColwiseParallel, RowwiseParallel
// and SequenceParallel of torch/distributed/tensor/parallel/style.py, torch 2.11.
int64_t dimension_of(const TensorStyle& style, const Module& module, const Parameter& parameter) {
  const bool embedding = is_embedding(module);
  switch (style.kind) {
    case TensorStyle::Kind::kColumn:
      return embedding ? 1 : 0;
    case TensorStyle::Kind::kRow:
      return embedding ? 0 : is_matrix(parameter) ? 1 : -1;
    case TensorStyle::Kind::kVocabulary:
      return 0;
    case TensorStyle::Kind::kSequence:
    case TensorStyle::Kind::kReplicate:
      return -1;
    case TensorStyle::Kind::kDimension:
      return style.dim;
  }
  return -1;
}

struct StandardStyle {
  std::string_view name;  // last part of the module's name
  TensorStyle::Kind kind;
};

// Source: parallelize_llama of torchtitan, base_model_tp_plan of transformers' decoders.
constexpr std::array<StandardStyle, 18> kStandardStyles{{
    {"q_proj", TensorStyle::Kind::kColumn},
    {"k_proj", TensorStyle::Kind::kColumn},
    {"v_proj", TensorStyle::Kind::kColumn},
    {"qkv_proj", TensorStyle::Kind::kColumn},
    {"o_proj", TensorStyle::Kind::kRow},
    {"gate_proj", TensorStyle::Kind::kColumn},
    {"up_proj", TensorStyle::Kind::kColumn},
    {"gate_up_proj", TensorStyle::Kind::kColumn},
    {"down_proj", TensorStyle::Kind::kRow},
    {"wq", TensorStyle::Kind::kColumn},
    {"wk", TensorStyle::Kind::kColumn},
    {"wv", TensorStyle::Kind::kColumn},
    {"wo", TensorStyle::Kind::kRow},
    {"w1", TensorStyle::Kind::kColumn},
    {"w2", TensorStyle::Kind::kRow},
    {"w3", TensorStyle::Kind::kColumn},
    {"lm_head", TensorStyle::Kind::kColumn},
    {"output", TensorStyle::Kind::kColumn},
}};

std::string_view last_name(const Module& module) {
  return std::string_view(module.fqn).substr(module.fqn.rfind('.') + 1);
}

// The groups of parameters that the plan lists for the unit; empty: the default.
const std::vector<ParameterGroupEntry>& groups_of(const Plan& plan, const Unit& unit) {
  static const std::vector<ParameterGroupEntry> kDefault;
  return unit.entry < 0 ? kDefault : plan.units[static_cast<size_t>(unit.entry)].groups;
}

// The dimension along which torchtitan shards experts: 1 where there are fewer of them on a rank
// than ranks that shard them. Source: apply_fsdp of torchtitan 0.2.2, models/llama4/infra.
int64_t usual_expert_dim(Layout layout, const std::vector<int64_t>& shape, int64_t ranks) {
  return layout == Layout::kPerParameter && shape.size() > 1 && shape[0] < ranks &&
                 shape[1] % ranks == 0
             ? 1
             : 0;
}

}  // namespace

bool is_embedding(const Module& module) {
  return module.type == "Embedding" || module.type.ends_with("WordEmbedding");
}

TensorStyle usual_style(const Module& module) {
  if (is_embedding(module)) {
    return {TensorStyle::Kind::kVocabulary};
  }
  const auto* found = std::ranges::find(kStandardStyles, last_name(module), &StandardStyle::name);
  return {found == kStandardStyles.end() || module.type != "Linear" ? TensorStyle::Kind::kReplicate
                                                                    : found->kind};
}

std::map<std::string, TensorStyle> usual_styles(const ModuleTree& tree) {
  struct Named {
    TensorStyle style;
    bool alike = true;  // all modules of the name have it
  };
  std::map<std::string_view, Named> names;
  for (const Module& module : tree.modules) {
    const TensorStyle style = usual_style(module);
    Named& of = names.try_emplace(last_name(module), Named{style}).first->second;
    of.alike = of.alike && of.style == style;
  }
  std::map<std::string, TensorStyle> out;
  for (const Module& module : tree.modules) {
    const TensorStyle style = usual_style(module);
    if (style.kind != TensorStyle::Kind::kReplicate) {
      const std::string name(last_name(module));
      out[names.at(name).alike ? "**." + name : module.fqn] = style;
    }
  }
  return out;
}

bool Resolver::is_usual(const Unit& unit) const {
  return plan_.mesh.expert == 1 && groups_of(plan_, unit).empty();
}

const ParameterGroupEntry& Resolver::group_of(const Unit& unit, uint32_t parameter) const {
  static const ParameterGroupEntry kDense, kExpert{.expert = true};
  const std::string& fqn = tree_.parameters[parameter].fqn;
  const std::vector<ParameterGroupEntry>& groups = groups_of(plan_, unit);
  if (groups.empty()) {
    return plan_.mesh.expert > 1 && is_named_expert(fqn) ? kExpert : kDense;
  }
  const auto found = std::ranges::find_if(groups, [&](const ParameterGroupEntry& group) {
    return std::ranges::any_of(group.parameters,
                               [&](const std::string& glob) { return glob_matches(glob, fqn); });
  });
  if (found == groups.end()) {
    fail(fmt::format("/units/{}/groups", unit.entry),
         fmt::format("parameter '{}' of the unit is in no group; expected every parameter in one",
                     fqn));
  }
  return *found;
}

std::string Resolver::place_of(const Unit& unit, const ParameterGroupEntry& group) const {
  const std::vector<ParameterGroupEntry>& groups = groups_of(plan_, unit);
  return groups.empty() ? "/mesh/expert"
                        : fmt::format("/units/{}/groups/{}", unit.entry, &group - groups.data());
}

void Resolver::divide_units() {
  for (size_t e = 0; e < plan_.units.size(); ++e) {
    const std::vector<ParameterGroupEntry>& groups = plan_.units[e].groups;
    for (size_t i = 0; i < groups.size(); ++i) {
      for (size_t k = 0; k < groups[i].parameters.size(); ++k) {
        (void)parameters_of_glob(groups[i].parameters[k],
                                 fmt::format("/units/{}/groups/{}/parameters/{}", e, i, k));
      }
    }
  }
  if (std::ranges::all_of(out_.units, [this](const Unit& unit) { return is_usual(unit); })) {
    return;
  }
  std::vector<Unit> divided;
  std::vector<UnitId> now(out_.units.size());  // id of the first group
  for (UnitId id = 0; id < out_.units.size(); ++id) {
    const Unit& unit = out_.units[id];
    now[id] = static_cast<UnitId>(divided.size());
    std::array<std::vector<uint32_t>, 2> parameters;  // on the dense mesh, on that of the experts
    for (const uint32_t parameter : unit.parameters) {
      parameters[group_of(unit, parameter).expert ? 1 : 0].push_back(parameter);
    }
    const bool first = !parameters[1].empty() && parameters[1].front() == unit.parameters.front();
    for (const bool expert : {first, !first}) {
      std::vector<uint32_t>& own = parameters[expert ? 1 : 0];
      if (own.empty() && expert != first) {
        continue;
      }
      Unit& group = divided.emplace_back(unit);
      const bool alone = own.size() == unit.parameters.size();
      group.expert = expert;
      group.groups = alone ? 1 : 2;
      group.group = expert == first ? 0 : 1;
      group.parameters = std::move(own);
      group.fqn = expert && !alone ? expert_group_of(unit.fqn) : unit.fqn;
    }
  }
  for (UnitId id = 0; id < divided.size(); ++id) {
    Unit& unit = divided[id];
    unit.parent = unit.group > 0           ? id - unit.group
                  : unit.parent == kNoUnit ? kNoUnit
                                           : now[unit.parent];
  }
  for (UnitId& unit : unit_of_) {
    unit = now[unit];
  }
  out_.units = std::move(divided);
}

void Resolver::set_groups() {
  for (Unit& unit : out_.units) {
    unit.gather = unit.expert ? out_.group_named(mesh::kExpertShard) : kShardGroup;
    unit.reduce = unit.gather;
    const mesh::Group& shards = out_.groups[unit.gather];
    if (plan_.separate_reduce_scatter_group && shards.size > 1) {
      mesh::Group own = shards;
      own.name = fmt::format("{}reduce_scatter", prefix_of(unit.gather));
      own.separate = true;
      unit.reduce = add_group(own, out_);
    }
  }
  for (Unit& unit : out_.units) {
    settle_sub_mesh(unit);
  }
}

void Resolver::settle_sub_mesh(Unit& unit) {
  Reshard& reshard = unit.reshard_after_forward;
  unit.kept = mesh::kNoGroup;
  if (reshard.kind != Reshard::Kind::kSubMesh) {
    return;
  }
  const mesh::Group& shards = out_.groups[unit.gather];
  if (shards.size % reshard.ranks != 0) {
    const bool own =
        unit.entry >= 0 && plan_.units[static_cast<size_t>(unit.entry)].reshard_after_forward;
    fail(
        own ? fmt::format("/units/{}/reshard_after_forward", unit.entry) : "/reshard_after_forward",
        fmt::format("{} ranks; expected a divisor of the size of the {} axis, {}", reshard.ranks,
                    shards.name, shards.size));
  }
  if (reshard.ranks == shards.size || reshard.ranks == 1) {
    reshard = {reshard.ranks == 1 && shards.size > 1 ? Reshard::Kind::kNo : Reshard::Kind::kYes, 0};
    return;
  }
  unit.kept =
      add_group(mesh::part_of(shards, reshard.ranks,
                              fmt::format("{}sub_shard{}", prefix_of(unit.gather), reshard.ranks)),
                out_);
}

void Resolver::place_parameters() {
  out_.placements.assign(tree_.parameters.size(), {});
  divide_modules();
  for (const Unit& unit : out_.units) {
    for (size_t i = 0; !is_usual(unit) && i < unit.parameters.size(); ++i) {
      place_in_group(unit, unit.parameters[i]);
    }
  }
}

// Divides parameters over the axis `tensor` as tensor_parallel says.
void Resolver::divide_modules() {
  const bool divides = plan_.mesh.tensor > 1;
  if (!plan_.tensor_parallel.empty() && !divides) {
    fail("/tensor_parallel",
         "the mesh has no axis along which modules are divided; expected "
         "\"mesh\": {\"tensor\": 2} or more");
  }
  const mesh::GroupId tensor = out_.group_named(mesh::kTensor);
  for (const auto& [glob, style] : plan_.tensor_parallel) {
    const std::string pointer = fmt::format("/tensor_parallel/{}", escape_token(glob));
    if (style.kind == TensorStyle::Kind::kDimension) {
      for (const uint32_t parameter : parameters_of_glob(glob, pointer)) {
        cut(parameter, tensor, style.dim, pointer);
      }
      continue;
    }
    for (const uint32_t module : matches(glob, pointer)) {
      divide_module(module, style, pointer);
    }
  }
  for (uint32_t module = 0;
       divides && plan_.tensor_parallel.empty() && module < tree_.modules.size(); ++module) {
    divide_module(module, usual_style(tree_.modules[module]), "/mesh/tensor");
  }
}

void Resolver::divide_module(uint32_t module,
                             const TensorStyle& style,
                             const std::string& pointer) {
  const mesh::GroupId tensor = out_.group_named(mesh::kTensor);
  for (const uint32_t parameter : tree_.modules[module].parameters) {
    const int64_t dim = dimension_of(style, tree_.modules[module], tree_.parameters[parameter]);
    if (dim >= 0) {
      cut(parameter, tensor, dim, pointer);
    }
  }
  for (const uint32_t child : tree_.modules[module].children) {  // adapters, as their layer
    const std::string_view name = last_name(tree_.modules[child]);
    if (name == "lora_A" || name == "lora_B") {
      divide_module(child, style, pointer);
    }
  }
}

void Resolver::place_in_group(const Unit& unit, uint32_t parameter) {
  const ParameterGroupEntry& group = group_of(unit, parameter);
  if (group.expert && plan_.mesh.expert > 1) {
    cut(parameter, out_.group_named(mesh::kExpert), 0, place_of(unit, group));
  }
  const int64_t ranks = out_.groups[unit.gather].size;
  const std::vector<int64_t> shape = out_.local_shape(parameter);
  if (group.expert && groups_of(plan_, unit).empty()) {
    out_.placements[parameter].shard_dim = usual_expert_dim(plan_.layout, shape, ranks);
    return;
  }
  if (group.shard_dim == 0) {
    return;
  }
  const std::string pointer = place_of(unit, group);
  const auto dim = static_cast<size_t>(group.shard_dim);
  if (plan_.layout == Layout::kFlat) {
    fail(pointer + "/shard_dim",
         "layout flat shards no dimension; expected 0, or layout per_parameter");
  }
  if (dim >= shape.size() || shape[dim] % ranks != 0) {
    fail(pointer + "/shard_dim",
         fmt::format("parameter '{}' is of shape [{}] on a rank; expected 0, or a dimension whose "
                     "size is a multiple of {} ranks",
                     tree_.parameters[parameter].fqn, fmt::join(shape, ", "), ranks));
  }
  out_.placements[parameter].shard_dim = group.shard_dim;
}

void Resolver::cut(uint32_t parameter,
                   mesh::GroupId group,
                   int64_t dim,
                   const std::string& pointer) {
  const Parameter& of = tree_.parameters[parameter];
  Placement& placed = out_.placements[parameter];
  if (dim >= static_cast<int64_t>(of.shape.size())) {
    fail(pointer, fmt::format("parameter '{}' of shape [{}] has no dimension {} to divide", of.fqn,
                              fmt::join(of.shape, ", "), dim));
  }
  if (placed.group != mesh::kNoGroup && (placed.group != group || placed.dim != dim)) {
    fail(pointer, fmt::format("parameter '{}' is divided over {} along dimension {} already; "
                              "expected one division",
                              of.fqn, out_.groups[placed.group].name, placed.dim));
  }
  placed.group = group;
  placed.dim = dim;
}

}  // namespace shardlens::plan
