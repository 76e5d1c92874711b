#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/plan/module_tree.h"
#include "core/plan/shard_layout.h"

namespace shardlens::plan {

enum class Dialect : uint8_t { kFsdp1, kFsdp2 };
enum class Views : uint8_t { kFresh, kFrozen };
enum class Api : uint8_t { kFullyShard, kReplicate };
enum class BackwardPrefetch : uint8_t { kPre, kPost, kNone };

// The value of reshard_after_forward: null, true, false, or a sub-mesh size.
struct Reshard {
  enum class Kind : uint8_t { kAuto, kYes, kNo, kSubMesh };
  Kind kind = Kind::kAuto;
  int64_t ranks = 0;  // kSubMesh only
  friend bool operator==(const Reshard&, const Reshard&) = default;
};

struct MixedPrecision {
  std::optional<DType> param_dtype, reduce_dtype, output_dtype, buffer_dtype;
  std::optional<bool> cast_forward_inputs;
  friend bool operator==(const MixedPrecision&, const MixedPrecision&) = default;
};

using PrefetchLists = std::map<std::string, std::vector<std::string>>;  // unit FQN → unit FQNs

// One entry of "units". Globs match FQNs: `*` matches one component, `**` any number of components,
// "" the root.
struct UnitEntry {
  std::vector<std::string> globs;
  bool grouped = false;  // written as a list: all matches form one unit; otherwise every match is
                         // a separate unit
  Api api = Api::kFullyShard;
  // Overrides of the plan's values. A mixed_precision replaces all of the plan's, as in PyTorch.
  std::optional<Reshard> reshard_after_forward;
  std::optional<bool> reshard_after_backward, requires_all_reduce;
  std::optional<bool> unshard_in_backward;  // only for units: the plan has no such key
  std::optional<MixedPrecision> mixed_precision;
  std::optional<bool> cpu_offload;
  std::optional<double> gradient_divide_factor;
  std::optional<double> bucket_cap_mb;
  std::optional<bool> find_unused_parameters, static_graph, gradient_as_bucket_view;
  friend bool operator==(const UnitEntry&, const UnitEntry&) = default;
};

inline constexpr int64_t kMostRanks = 65536;  // largest world size of a plan

// A plan file (version 1) or the expansion of a strategy, not resolved yet. docs/plan.md documents
// every key.
struct Plan {
  std::string source = "--strategy";  // file name or flag, for messages; not part of the plan
  std::optional<int64_t> mesh_replicate, mesh_shard;
  Dialect dialect = Dialect::kFsdp2;
  Layout layout = Layout::kFlat;
  Views views = Views::kFresh;
  std::vector<UnitEntry> units;  // empty: every block and the root
  Reshard reshard_after_forward;
  bool reshard_after_backward = true, requires_all_reduce = true;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  PrefetchLists backward_prefetch_lists;
  int64_t forward_prefetch = 0;  // depth
  PrefetchLists forward_prefetch_lists;
  bool limit_all_gathers = true;
  MixedPrecision mixed_precision;
  std::vector<std::string> activation_checkpointing;
  bool cpu_offload = false;
  std::vector<std::string> ignored_modules, ignored_parameters;
  std::vector<std::string> frozen_parameters;  // parameters that do not require grad
  std::optional<double> gradient_divide_factor;
  std::optional<double> bucket_cap_mb;  // nullopt: DDP's default, 25 and 1 for the first bucket
  bool find_unused_parameters = false, static_graph = false, gradient_as_bucket_view = false;

  friend bool operator==(const Plan&, const Plan&) = default;  // compares `source` too
};

// Errors: InputError "plan.json#/json/pointer: unknown key 'x'; expected one of …; did you mean
// 'y'?".
[[nodiscard]] Plan parse_plan(std::string_view json, const std::string& source);
[[nodiscard]] Plan load_plan(const std::filesystem::path& path);
// `strategy`: full_shard, shard_grad_op, no_shard, hybrid_shard or replicate. Errors: UsageError
// with the nearest name for any other.
[[nodiscard]] Plan strategy_plan(std::string_view strategy, const ModuleTree& tree);
// Parses the "RxS" of --mesh into {replicate, shard}. Errors: UsageError.
[[nodiscard]] std::pair<int64_t, int64_t> parse_mesh(std::string_view text);
// "full_shard", …: used in messages and help.
[[nodiscard]] const std::vector<std::string>& strategy_names();
// The text of a plan file with every key; parse_plan returns the same Plan for it.
[[nodiscard]] std::string to_json(const Plan& plan);

// Modules that are sharded together.
struct Unit {
  std::string fqn;                // several modules: joined by ", "
  std::vector<uint32_t> modules;  // indices into ModuleTree::modules
  std::vector<uint32_t>
      parameters;  // indices into ModuleTree::parameters, in traversal order; not nested units'
  UnitId parent = kNoUnit;  // nearest enclosing unit; kNoUnit for the root
  Api api = Api::kFullyShard;
  Reshard reshard_after_forward;
  // False: unsharded between the microbatches of a step. The last backward reshards in any case,
  // because the optimizer changes the shards.
  bool reshard_after_backward = true;
  // False: all microbatches except the last reduce gradients only over the shard axis.
  bool requires_all_reduce = true;
  bool unshard_in_backward = true;  // false: its backward needs no parameters (embeddings)
  MixedPrecision mixed_precision;
  bool cpu_offload = false;
  std::optional<double> gradient_divide_factor;
  std::optional<double> bucket_cap_mb;  // kReplicate only, like the next three flags
  bool find_unused_parameters = false, static_graph = false, gradient_as_bucket_view = false;
  // Explicit lists. In fsdp2 resolve() converts a forward_prefetch depth d into lists too: every
  // unit prefetches the next d units in pre-order that have an all-gather, the root the first d.
  std::vector<UnitId> forward_prefetch, backward_prefetch;
  bool has_forward_prefetch_list = false, has_backward_prefetch_list = false;
  int32_t entry = -1;  // index into Plan::units; -1: not in the plan (a root that owns no
                       // parameters, or a plan without "units")
};

// A plan applied to a model on a mesh; the input of engine, schedule, simulator and app.
struct ResolvedPlan {
  Plan plan;
  ModuleTree tree;
  int64_t world_size = 1, replicate = 1, shard = 1;
  std::vector<Unit> units;  // pre-order; [0] is the root, which may own no parameters
  std::vector<uint32_t> ignored_parameters;    // in no unit; unsharded on every rank
  std::vector<uint32_t> checkpointed_modules;  // activation_checkpointing, pre-order

  [[nodiscard]] ShardLayout layout(
      UnitId unit) const;  // over the shard axis, in the unit's master dtype
  // The layout of what a reduction carries: the whole flat parameter, or in layout per_parameter
  // the parameters that require grad; no parameters if all are frozen.
  [[nodiscard]] ShardLayout reduced_layout(UnitId unit) const;
  [[nodiscard]] bool is_frozen(UnitId unit) const;  // owns parameters, all of them frozen
  // Elements of a rank's shard that the optimizer updates: all of them, including padding, or, if
  // some parameters are frozen, a rank's share of the others.
  [[nodiscard]] int64_t stepped_numel(UnitId unit) const;
  [[nodiscard]] DType param_dtype(UnitId unit) const;  // dtype of the unsharded parameters
  [[nodiscard]] DType reduce_dtype(UnitId unit) const;
};

// mesh.shard 1 without mesh.replicate means no_shard: replicate = world size. A sub-mesh of all
// ranks is resolved to `true`, one of a single rank to `false`. Wildcards do not match ModuleLists,
// which have no forward; naming one is an error. Errors: InputError with JSON pointer for an
// impossible mesh, a glob without match, a module matched by two entries, a parameter in no unit, a
// tied parameter in two units, a name in a prefetch list that is not a unit, a sub-mesh that does
// not divide shard, or unshard_in_backward false for a unit whose backward needs its parameters.
[[nodiscard]] ResolvedPlan resolve(const Plan& plan, const ModuleTree& tree, int64_t world_size);

// Throws InputError naming the key if the plan needs something that the engine does not support
// ("…: not supported by the engine yet").
void require_engine_support(const ResolvedPlan& plan);

}  // namespace shardlens::plan
