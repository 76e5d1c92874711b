#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/layout/shard_layout.h"
#include "core/mesh/mesh.h"
#include "core/plan/plan.h"
#include "core/tree/module_tree.h"

namespace shardlens::plan {

// Groups that every plan has.
inline constexpr mesh::GroupId kShardGroup = 0, kReplicateGroup = 1;

// How the ranks divide one parameter.
struct Placement {
  // Before FSDP shards it: over these ranks, along `dim` as torch.chunk does. kNoGroup: each has
  // the whole parameter.
  mesh::GroupId group = mesh::kNoGroup;
  int64_t dim = 0;
  int64_t shard_dim = 0;  // the dimension along which FSDP shards the rank's part
  friend bool operator==(const Placement&, const Placement&) = default;
};

// Modules that are sharded together. Parameters of a unit that are sharded over other ranks than
// the rest of it are a second group: a Unit of its own right after the first, with the same modules
// and settings. Hooks, order and prefetch lists are those of the unit, and the lists name its first
// group.
struct Unit {
  std::string fqn;                // several modules: joined by ", "; parameter_groups.h
  std::vector<uint32_t> modules;  // indices into ModuleTree::modules
  std::vector<uint32_t>
      parameters;  // indices into ModuleTree::parameters, in traversal order; not nested units'
  UnitId parent = kNoUnit;  // nearest enclosing unit; kNoUnit for the root. Of a second group: the
                            // first one
  uint32_t group = 0, groups = 1;  // its index among the groups of the unit, and their number
  bool expert = false;             // its parameters are on the experts' mesh
  Api api = Api::kFullyShard;
  Reshard reshard_after_forward;
  // False: unsharded between the microbatches of a step. The last backward reshards in any case,
  // because the optimizer changes the shards.
  bool reshard_after_backward = true;
  // False: all microbatches except the last reduce gradients only over the shard axis.
  bool requires_all_reduce = true;
  bool keep_unsharded_storage = false;  // the memory of its unsharded parameters is never freed
  bool unshard_in_backward = true;      // false: its backward needs no parameters (embeddings)
  MixedPrecision mixed_precision;
  bool cpu_offload = false;
  // The optimizer updates the unit as soon as its gradient is reduced.
  bool optimizer_in_backward = false;
  std::optional<double> gradient_divide_factor;
  std::optional<double> bucket_cap_mb;  // kReplicate only, like the next three flags
  bool find_unused_parameters = false, static_graph = false, gradient_as_bucket_view = false;
  // Explicit lists. In fsdp2 resolve() converts a forward_prefetch depth d into lists too: every
  // unit prefetches the next d units in pre-order that have an all-gather, the root the first d.
  std::vector<UnitId> forward_prefetch, backward_prefetch;
  // Groups over which its parameters are gathered, gradients reduce-scattered and then all-reduced;
  // `kept`: over which it keeps its parameters sharded after forward (kSubMesh), else kNoGroup.
  mesh::GroupId gather = kShardGroup, reduce = kShardGroup, replicate = kReplicateGroup,
                kept = mesh::kNoGroup;
  bool has_forward_prefetch_list = false, has_backward_prefetch_list = false;
  int32_t entry = -1;  // index into Plan::units; -1: not in the plan (a root that owns no
                       // parameters, or a plan without "units")
};

// A plan applied to a model on a mesh; the input of engine, schedule, simulator and app.
struct ResolvedPlan {
  Plan plan;
  ModuleTree tree;
  int64_t world_size = 1;
  mesh::Mesh mesh;  // of the axes `replicate`, `shard`, `context` and `tensor`
  // The mesh of the axes `replicate`, `expert_shard` and `expert`, over the same ranks; one rank
  // without mesh.expert.
  mesh::Mesh expert_mesh;
  // By mesh::GroupId: kShardGroup (along `shard` and `context`), kReplicateGroup, those along
  // `context`, `tensor`, `expert_shard` and `expert` if the axis is used, those of reduce-scatters
  // if they have their own, and one for each size of sub-meshes that units keep after forward.
  std::vector<mesh::Group> groups{{.name = "shard"}, {.name = "replicate"}};
  std::vector<Placement> placements;  // by index into ModuleTree::parameters
  std::vector<Unit> units;            // pre-order; [0] is the root, which may own no parameters
  std::vector<uint32_t> ignored_parameters;    // in no unit; unsharded on every rank
  std::vector<uint32_t> checkpointed_modules;  // activation_checkpointing, pre-order
  // Layout per_parameter: PyTorch's FSDP2 copies parameters and gradients in a group of one rank
  // too; in this engine the shard is then the parameter.
  bool copies_in_group_of_one = false;

  // Ranks of the largest group that gathers a unit: experts may be sharded where the rest is not.
  [[nodiscard]] int64_t most_shards() const;
  // Layout per_parameter: unsharded parameters are copied out of what was gathered.
  [[nodiscard]] bool copies_out() const {
    return plan.layout == Layout::kPerParameter && (most_shards() > 1 || copies_in_group_of_one);
  }
  // Ranks that shard the parameters; that have copies of each shard.
  [[nodiscard]] int64_t shards() const { return groups[kShardGroup].size; }
  [[nodiscard]] int64_t replicas() const { return groups[kReplicateGroup].size; }
  // The group with this name; kNoGroup: there is none.
  [[nodiscard]] mesh::GroupId group_named(std::string_view name) const;
  // The parameter's shape on `rank` before FSDP shards it.
  [[nodiscard]] std::vector<int64_t> local_shape(uint32_t parameter, int64_t rank = 0) const;
  [[nodiscard]] int64_t local_numel(uint32_t parameter, int64_t rank = 0) const;
  // How the ranks that gather the unit with `rank` shard its parameters, in the unit's master
  // dtype. Rank 0 has the largest parts where an axis of the mesh does not divide a dimension.
  [[nodiscard]] ShardLayout layout(UnitId unit, int64_t rank = 0) const;
  // The layout of what a reduction carries: the whole flat parameter, or in layout per_parameter
  // the parameters that require grad; no parameters if all are frozen.
  [[nodiscard]] ShardLayout reduced_layout(UnitId unit) const;
  // Of a unit of several modules: the same of the gradients of its last module, and of those that
  // this leaves (Grads::kLast and kOthers). Layout per_parameter.
  [[nodiscard]] ShardLayout reduced_layout_of_last(UnitId unit) const;
  [[nodiscard]] ShardLayout reduced_layout_of_others(UnitId unit) const;
  // Whether any unit is replicated instead of sharded; whether all are.
  [[nodiscard]] bool has_replicated_units() const;
  [[nodiscard]] bool is_replicated() const;
  [[nodiscard]] bool is_frozen(UnitId unit) const;  // owns parameters, all of them frozen
  // Elements of a rank's shard that the optimizer updates: all of them, including padding, or, if
  // some parameters are frozen, a rank's share of the others.
  [[nodiscard]] int64_t stepped_numel(UnitId unit) const;
  // Dtypes of the trained parameters or, if all are frozen, of the first: in the shard, unsharded,
  // and of their reduced gradients. In layout per_parameter frozen ones may have others.
  [[nodiscard]] DType master_dtype(UnitId unit) const;
  [[nodiscard]] DType param_dtype(UnitId unit) const;
  [[nodiscard]] DType reduce_dtype(UnitId unit) const;
  // The dtype of one parameter of the unit, by its index into ModuleTree::parameters, unsharded;
  // kU8 for the 8 bits of gathers_float8().
  [[nodiscard]] DType unsharded_dtype(UnitId unit, uint32_t parameter) const;
  // Whether a parameter of the unit is gathered as float8: the weights of linear layers in blocks
  // of a unit with MixedPrecision::gathers_float8, if the kernels of 8-bit products take them.
  [[nodiscard]] bool gathers_float8(UnitId unit, uint32_t parameter) const;
  // The dtype of the all-gather: kU8 if the unsharded parameters have several dtypes.
  [[nodiscard]] DType gather_dtype(UnitId unit) const;
  [[nodiscard]] bool steps_in_backward() const;  // any unit has optimizer_in_backward
  // Whether any parameter has another dtype in the shard than unsharded.
  [[nodiscard]] bool casts_parameters(UnitId unit) const;
};

// The plan's group with the name, size and stride of `group`, which is added if there is none.
//
// Errors  InputError if the plan has another group of this name, or as many groups as it can have.
mesh::GroupId add_group(const mesh::Group& group, ResolvedPlan& plan);

}  // namespace shardlens::plan
