#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/layout/shard_layout.h"
#include "core/plan/mesh_sizes.h"
#include "core/plan/mixed_precision.h"
#include "core/tree/module_tree.h"

namespace shardlens::plan {

enum class Dialect : uint8_t { kFsdp1, kFsdp2 };
enum class Views : uint8_t { kFresh, kFrozen };
enum class Api : uint8_t { kFullyShard, kReplicate };
enum class BackwardPrefetch : uint8_t { kPre, kPost, kNone };

// Who ends a step's backward in FSDP2. kAutomatic: autograd's final callback, in each backward. The
// program does it once, after the last backward (finalize_backward() of PyTorch 2.15). kWaits: it
// waits for reductions that the backwards issued. kReduces: it also issues them, because the
// backwards ran without sync.
enum class Finalization : uint8_t { kAutomatic, kWaits, kReduces };

// The value of reshard_after_forward: null, true, false, or a sub-mesh size.
struct Reshard {
  enum class Kind : uint8_t { kAuto, kYes, kNo, kSubMesh };
  Kind kind = Kind::kAuto;
  int64_t ranks = 0;  // kSubMesh only
  friend bool operator==(const Reshard&, const Reshard&) = default;
};

// The results that a checkpointed module keeps besides its input: those of operators that do not
// run again in backward (PyTorch's selective checkpointing). kEverySecond: of every second product,
// the first one included.
struct CheckpointSaves {
  enum class Products : uint8_t { kNone, kEverySecond, kAll };
  Products products = Products::kNone;
  bool attention = false;
  friend bool operator==(const CheckpointSaves&, const CheckpointSaves&) = default;

  [[nodiscard]] bool any() const { return attention || products != Products::kNone; }
};

// How tensor parallelism divides a module's own parameters, as PyTorch's ParallelStyle. kColumn
// divides the output features of a weight and its bias, kRow the input features, kVocabulary the
// rows of an embedding; with kSequence and kReplicate each rank has the whole parameters.
// kDimension divides parameters along `dim`.
struct TensorStyle {
  enum class Kind : uint8_t { kColumn, kRow, kVocabulary, kSequence, kReplicate, kDimension };
  Kind kind = Kind::kReplicate;
  int64_t dim = 0;  // kDimension only
  friend bool operator==(const TensorStyle&, const TensorStyle&) = default;
};

// How the ranks of a context, each with a part of the sequence, come to the keys and values of the
// others. kAllGather: all at once. kRing: those of one rank after the other, while attention to the
// ones that are there is computed; a rank then has one part from the sequence's first half and one
// from its second (zigzag), so that all have as much to compute.
enum class ContextMethod : uint8_t { kAllGather, kRing };

// How the rows of tokens come to the ranks with their experts, with mesh.expert > 1. kAllToAll:
// each rank sends each row to the ranks with its experts, after they have exchanged how many they
// send. kAllGather: each rank gathers the tokens of all.
enum class ExpertDispatch : uint8_t { kAllToAll, kAllGather, kDeepEp };

// One entry of a unit's "groups": parameters that are gathered and reduced together.
struct ParameterGroupEntry {
  std::vector<std::string> parameters{"**"};  // globs
  bool expert = false;    // on the experts' mesh: divided over its axis `expert` along dimension 0,
                          // and sharded over `expert_shard`
  int64_t shard_dim = 0;  // the dimension along which they are sharded
  friend bool operator==(const ParameterGroupEntry&, const ParameterGroupEntry&) = default;
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
  std::optional<bool> reshard_after_backward, requires_all_reduce, keep_unsharded_storage;
  std::optional<bool> unshard_in_backward;  // only for units: the plan has no such key
  std::optional<MixedPrecision> mixed_precision;
  std::optional<bool> cpu_offload, optimizer_in_backward;
  std::optional<double> gradient_divide_factor;
  std::optional<double> bucket_cap_mb;
  std::optional<bool> find_unused_parameters, static_graph, gradient_as_bucket_view;
  std::vector<ParameterGroupEntry> groups;  // empty: one, of all parameters, on the dense mesh
  friend bool operator==(const UnitEntry&, const UnitEntry&) = default;
};

// A plan file (version 1) or the expansion of a strategy, not resolved yet. docs/reference/plan.md
// documents every key.
struct Plan {
  std::string source = "--strategy";  // file name or flag, for messages; not part of the plan
  MeshSizes mesh;
  // Glob of modules → style; with kDimension glob of parameters. Empty: the usual styles, by the
  // modules' names.
  std::map<std::string, TensorStyle> tensor_parallel;
  // With mesh.tensor > 1: what is between the divided layers runs on a part of the sequence; the
  // loss runs on a part of the vocabulary, so that the logits are not gathered.
  bool sequence_parallel = true, loss_parallel = false;
  // With sequence_parallel: the layers that take the same rows gather them once; false: each of
  // them gathers them, and scatters the gradient of them, by itself.
  bool shared_gathers = true;
  ContextMethod context_method = ContextMethod::kAllGather;    // with mesh.context > 1
  ExpertDispatch expert_dispatch = ExpertDispatch::kAllToAll;  // with mesh.expert > 1
  // With kDeepEp: the ranks that have experts of a token. By default as many as a random choice of
  // the experts gives in the mean.
  std::optional<int64_t> ranks_per_token;
  Dialect dialect = Dialect::kFsdp2;
  Layout layout = Layout::kFlat;
  Views views = Views::kFresh;
  std::vector<UnitEntry> units;  // empty: every block and the root
  Reshard reshard_after_forward;
  bool reshard_after_backward = true, requires_all_reduce = true;
  // The memory of unsharded parameters is kept while they are sharded.
  bool keep_unsharded_storage = false;
  Finalization backward_finalization = Finalization::kAutomatic;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  PrefetchLists backward_prefetch_lists;
  int64_t forward_prefetch = 0;  // depth
  PrefetchLists forward_prefetch_lists;
  bool limit_all_gathers = true;
  // Reduce-scatters have a process group of their own, so that they and all-gathers run at the same
  // time.
  bool separate_reduce_scatter_group = false;
  // Parameters without a gradient are reduced as zeros, so that ranks that use different parameters
  // issue the same reductions.
  bool reduce_scatter_unused_params = false;
  // Reductions whose inputs exist at the same time; the next one waits for the oldest.
  int64_t reduce_scatter_max_input_buffers = 1;
  // The dtype of the parameters between steps, and so of shards, gradients and optimizer states:
  // what model.to(dtype) makes of the model before it is sharded. nullopt: as the model has them.
  std::optional<DType> dtype;
  MixedPrecision mixed_precision;
  std::vector<std::string> activation_checkpointing;
  CheckpointSaves checkpointing_saves;
  bool cpu_offload = false, optimizer_in_backward = false;
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
// "full_shard", …: used in messages and help.
[[nodiscard]] const std::vector<std::string>& strategy_names();
// The text of a plan file with every key; parse_plan returns the same Plan for it.
[[nodiscard]] std::string to_json(const Plan& plan);

}  // namespace shardlens::plan
