#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/plan/module_tree.h"
#include "core/plan/plan.h"
#include "core/plan/shard_layout.h"

namespace shardlens::plan {

// Modules sharded together.
struct Unit {
  std::string fqn;                // several modules: joined by ", "
  std::vector<uint32_t> modules;  // indices into ModuleTree::modules
  std::vector<uint32_t>
      parameters;  // indices into ModuleTree::parameters, in traversal order, without nested units'
  UnitId parent = kNoUnit;  // nearest enclosing unit; kNoUnit for the root
  Api api = Api::kFullyShard;
  Reshard reshard_after_forward;
  // False: whole between the microbatches of a step; its last backward reshards all the same, for
  // the optimizer changes the shards.
  bool reshard_after_backward = true;
  // False: microbatches but the last are reduced within the shard axis alone.
  bool requires_all_reduce = true;
  bool unshard_in_backward = true;  // false: its backward needs no parameters (embeddings)
  MixedPrecision mixed_precision;
  bool cpu_offload = false;
  std::optional<double> gradient_divide_factor;
  std::optional<double> bucket_cap_mb;  // kReplicate only, like the three flags
  bool find_unused_parameters = false, static_graph = false, gradient_as_bucket_view = false;
  // Explicit lists. In fsdp2 resolve() turns a forward_prefetch depth d into lists too: every unit
  // prefetches the next d units with an all-gather in pre-order, the root the first d.
  std::vector<UnitId> forward_prefetch, backward_prefetch;
  bool has_forward_prefetch_list = false, has_backward_prefetch_list = false;
  int32_t entry = -1;  // index into Plan::units; -1: not named by the plan (a root that owns
                       // nothing, or no "units")
};

// A plan applied to a model on a mesh: what engine, schedule, simulator and app work from.
struct ResolvedPlan {
  Plan plan;
  ModuleTree tree;
  int64_t world_size = 1, replicate = 1, shard = 1;
  std::vector<Unit> units;  // pre-order; [0] is the root, which may own no parameters
  std::vector<uint32_t> ignored_parameters;    // whole on every rank; in no unit
  std::vector<uint32_t> checkpointed_modules;  // activation_checkpointing, pre-order

  [[nodiscard]] ShardLayout layout(
      UnitId unit) const;  // over the shard axis, in the unit's master dtype
  // What a reduction carries: a flat parameter as a whole, or the parameters that require grad;
  // none if all are frozen.
  [[nodiscard]] ShardLayout reduced_layout(UnitId unit) const;
  [[nodiscard]] bool is_frozen(UnitId unit) const;  // owns parameters, all of them frozen
  // Elements of a rank's shard that an optimizer steps on: all of them, padding too, or a rank's
  // share of the parameters that are not frozen.
  [[nodiscard]] int64_t stepped_numel(UnitId unit) const;
  [[nodiscard]] DType param_dtype(UnitId unit) const;  // of the unsharded parameters
  [[nodiscard]] DType reduce_dtype(UnitId unit) const;
};

}  // namespace shardlens::plan
