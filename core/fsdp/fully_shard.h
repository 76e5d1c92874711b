#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/TensorBody.h>

#include "core/base/recorder.h"
#include "core/plan/resolved_plan.h"

namespace torch::nn {
class Module;
}
namespace shardlens::composable {
struct Api;
}
namespace shardlens::dist {
class World;
}

namespace shardlens::fsdp {

class Executor;
class FlatParamHandle;

// What fully_shard leaves in the registry of the modules it is applied to.
[[nodiscard]] const composable::Api& fully_shard_api();

struct Options {
  dist::World* world = nullptr;  // not owned; must outlive the ShardedModel
  Recorder* recorder = nullptr;  // not owned; may be null
  // Run every action through schedule::Ledger and fail on a broken invariant.
  bool check_ledger = false;
  // Parameters without storage (models::Init::kNone) get none for their shards either, until
  // ShardedModel::materialize(): sharding first takes no memory, whatever the model's size.
  bool deferred = false;
  // Issue collectives over groups of one rank too, so that their streams and error paths are real.
  bool force_collectives = false;
  // Makes the executor (`handles` by UnitId, null without parameters); empty: the CPU executor.
  std::function<std::unique_ptr<Executor>(std::vector<FlatParamHandle*> handles)> make_executor =
      {};
};

// What this rank holds of one parameter: `values` is a 1-D view of the unit's flat shard.
struct ParameterSlice {
  uint32_t parameter = 0;  // index into ModuleTree::parameters
  int64_t offset = 0;      // first element of the (flattened) parameter that is held
  at::Tensor values;       // [numel], numel > 0
};

// A model whose parameters are sharded by a plan. Between steps every parameter of the module is
// this rank's 1-D slice (numel 0 where nothing of it is here), so that torch::optim over
// model->parameters() works; during a unit's forward and backward it is the whole parameter.
// Obtained from fully_shard; lives as long as the module or the handle.
//
// Threads  all calls on the thread that trains.
// Errors   RuntimeFault for collectives; UsageError for wrong use, such as a unit whose hooks did
//          not fire although its parameters were used.
class ShardedModel {
 public:
  virtual ~ShardedModel() = default;

  [[nodiscard]] virtual const plan::ResolvedPlan& plan() const = 0;
  // Master shard of each unit that owns parameters, 1-D [shard_numel], padding included; of a unit
  // with some frozen parameters, this rank's slice of each other one. grad() is
  // defined after a backward with gradient sync. A fused optimizer steps on these (parameters are
  // views of them).
  [[nodiscard]] virtual std::span<const at::Tensor> flat_shards() const = 0;
  [[nodiscard]] virtual std::vector<ParameterSlice> slices() const = 0;

  // Gives shards that were deferred their storage, zeros; slices() are then to be filled. The first
  // forward is an error before that.
  virtual void materialize() = 0;
  // Whether the backwards from here on reduce gradients (false: accumulate unsharded, as no_sync).
  virtual void set_requires_gradient_sync(bool sync) = 0;
  // Before each of several microbatches of a step, after set_requires_gradient_sync: what the plan
  // leaves to the `last` one (reshard_after_backward, requires_all_reduce).
  virtual void begin_microbatch(bool last) = 0;
  // p-norm (inf too) over all parameters of all ranks, one all-reduce; gradients are scaled by
  // min(1, max_norm/(norm+1e-6)) unless max_norm is infinite. Returns the norm before clipping.
  virtual double clip_grad_norm(double max_norm, double norm_type = 2.0) = 0;
  virtual void zero_grad() = 0;
  // Tells the schedule that the optimizer step was issued; call after every optimizer step.
  virtual void optimizer_done() = 0;
  // The whole parameter, on every rank (a collective: all ranks call it in the same order). Shape
  // of the parameter.
  [[nodiscard]] virtual at::Tensor full_parameter(uint32_t parameter) = 0;
  // Brings every unit back to sharded. Forwards and backwards that throw do it by themselves.
  virtual void abort() = 0;
  // Records an action of a part that is not sharded (replicate), numbered with all others. Returns
  // its number.
  virtual uint32_t record_action(const schedule::Action& action) = 0;
  // Bytes of storage of unsharded parameters that exist right now; 0 between steps under
  // full_shard.
  [[nodiscard]] virtual int64_t unsharded_bytes() const = 0;
};

// Shards `model` in place by `plan`, whose module tree must be the model's (names, shapes and order
// are checked). Parameter values are taken from the modules; a parameter without storage
// (models::Init::kNone) is left for the caller to fill through slices(). Every unit of its own must
// be Hookable (SHARDLENS_MODULE) and is named otherwise. Parameters that do not require grad, in
// the module or by the plan, are frozen: gathered with their unit, and given no gradient.
//
// Errors      UsageError naming module or parameter; InputError from plan::require_engine_support.
[[nodiscard]] std::shared_ptr<ShardedModel> fully_shard(
    const std::shared_ptr<torch::nn::Module>& model,
    const plan::ResolvedPlan& plan,
    const Options& options);

// The same for a model of the user's own: the plan is resolved against the model's module tree and
// the world's size. Parts that were sharded by themselves become units under this root, parts that
// are replicated stay out of it.
[[nodiscard]] std::shared_ptr<ShardedModel> fully_shard(
    const std::shared_ptr<torch::nn::Module>& model,
    const plan::Plan& plan,
    const Options& options);

// Makes one unit, now, of the modules: of all their parameters but those of units below them, so
// apply it bottom-up. PyTorch's fully_shard(module) and fully_shard([module, …]). `settings` is a
// plan of which the units do not matter; its globs of ignored and frozen parts are over FQNs from
// the module.
//
// The module whose forward runs first becomes the root of its units (lazy initialisation), which
// then share one schedule; units without a common root are roots of their own.
// Errors  UsageError as fully_shard, and in the first forward of a root: a part that has run by
//         itself before; several modules; units whose mesh, dialect, layout or views differ.
// Source  torch/distributed/fsdp/_fully_shard, FSDPState._lazy_init, torch 2.11.
void fully_shard_unit(const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                      const plan::Plan& settings,
                      const Options& options);

// The model whose root `module` is; where that is not decided yet, `module` becomes the root now,
// as by its first forward. Errors: UsageError for a module that is no root.
[[nodiscard]] std::shared_ptr<ShardedModel> lazy_init(
    const std::shared_ptr<torch::nn::Module>& module);

}  // namespace shardlens::fsdp
