#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/TensorBody.h>

#include "core/base/recorder.h"
#include "core/fsdp/unit/flat_param_types.h"
#include "core/plan/resolved_plan.h"

namespace shardlens::dist {
class World;
}

namespace shardlens::fsdp {

// The part of one parameter that this rank stores: `values` is a 1-D view of the unit's flat shard.
struct ParameterSlice {
  uint32_t parameter = 0;  // index into ModuleTree::parameters
  int64_t offset = 0;      // index of the first stored element in the flattened parameter
  at::Tensor values;       // [numel], numel > 0
};

// The optimizers of units with optimizer_in_backward.
//
// Threads  `step` is called within backward, once for each unit: on the CPU on a communication
//          thread, for one unit at a time, while backward continues; on a device on autograd's
//          thread, with the stream that has reduced the gradient as the current one. The thread
//          that trains may use what `step` has written after backward has returned (on a device, on
//          the stream that was current in the forward).
struct OptimizerInBackward {
  // Updates each of `updates` in place. It has no autograd. The gradients are dropped afterwards.
  std::function<void(std::span<const ShardUpdate> updates)> step;
  // The p of the gradient norm that issue_clip_grad_norm() will be asked for after backward, so
  // that these gradients are part of it; nullopt: it will not be asked.
  std::optional<double> norm_type = {};
};

// A model whose parameters are sharded by a plan. Between steps every parameter of the module is
// this rank's 1-D slice (numel 0 if this rank stores none of it), so that torch::optim over
// model->parameters() works. During a unit's forward and backward it is the unsharded parameter.
// Returned by fully_shard; exists as long as the module or the returned pointer.
//
// Threads  all calls on the thread that trains.
// Errors   RuntimeFault for collectives; UsageError for wrong use, for example if the parameters of
//          a unit were used without its hooks.
class ShardedModel {
 public:
  virtual ~ShardedModel() = default;

  [[nodiscard]] virtual const plan::ResolvedPlan& plan() const = 0;
  // The master shard of each unit with parameters, 1-D [shard_numel], including padding. For a unit
  // in which only some parameters are frozen: this rank's slice of each of the others. grad() is
  // defined after a backward with gradient sync. A fused optimizer updates these tensors
  // (parameters are views of them).
  [[nodiscard]] virtual std::span<const at::Tensor> flat_shards() const = 0;
  [[nodiscard]] virtual std::vector<ParameterSlice> slices() const = 0;

  // Allocates the storage of deferred shards, filled with zeros; the caller must then fill
  // slices(). Must be called before the first forward.
  virtual void materialize() = 0;
  // Whether later backwards reduce gradients (false: accumulate them unsharded, like no_sync).
  virtual void set_requires_gradient_sync(bool sync) = 0;
  // Call before each of several microbatches of a step, after set_requires_gradient_sync. If the
  // plan's reshard_after_backward (requires_all_reduce) is false, only the backward of the `last`
  // one reshards (all-reduces).
  virtual void begin_microbatch(bool last) = 0;
  // Must be called before the first forward with gradients if any unit has optimizer_in_backward.
  // Every reduction then updates its unit, so a step needs microbatches without sync before its
  // last one. A backward that throws may have updated some units. Errors: UsageError if no unit
  // has the key.
  virtual void set_optimizer_in_backward(OptimizerInBackward optimizer) = 0;
  // p-norm (also inf) over all parameters of all ranks, one all-reduce; gradients are scaled by
  // min(1, max_norm/(norm+1e-6)) unless max_norm is infinite. Returns the norm before clipping.
  // Gradients that optimizer_in_backward has used can only be counted: UsageError if they are to be
  // clipped or have another norm type than OptimizerInBackward::norm_type.
  double clip_grad_norm(double max_norm, double norm_type = 2.0);
  // The same, but does not wait for a device: the norm is a scalar tensor, there or on the CPU.
  [[nodiscard]] virtual at::Tensor issue_clip_grad_norm(double max_norm, double norm_type) = 0;
  virtual void zero_grad() = 0;
  // Notifies the schedule that the optimizer step was issued; call after every optimizer step, and
  // after writes through at::Tensor::data(), which nothing else shows. Without it, later
  // all-gathers wait for more than the optimizer, and units that are kept unsharded are gathered
  // more often.
  virtual void optimizer_done() = 0;
  // The unsharded parameter, in its shape, on every rank. A collective: all ranks must call it in
  // the same order.
  [[nodiscard]] virtual at::Tensor full_parameter(uint32_t parameter) = 0;
  // Reshards every unit. Forwards and backwards that throw do this by themselves.
  virtual void abort() = 0;
  // For Join (uneven_inputs.h). remember_microbatches(): from now on a rank remembers what the
  // collectives of its last forward and backward were, so that shadow_microbatch() can issue them
  // again with zeros as gradients, in the place of a forward and backward. divide_gradients_by():
  // the number of ranks whose gradients count, in place of the world size.
  virtual void remember_microbatches() = 0;
  [[nodiscard]] virtual bool can_shadow() const = 0;
  virtual void shadow_microbatch() = 0;
  virtual void divide_gradients_by(int64_t ranks) = 0;
  // Records an action of a replicated part, numbered with all others. Returns its number.
  virtual uint32_t record_action(const schedule::Action& action) = 0;
  // Frees the memory that was kept for work on a device which has ended by now. Useful after the
  // host has waited for the device; otherwise the next forward does it.
  virtual void free_finished() = 0;
  // Bytes of the unsharded parameters that are allocated now; 0 between steps with full_shard.
  [[nodiscard]] virtual int64_t unsharded_bytes() const = 0;

 protected:
  [[nodiscard]] virtual dist::World& world() const = 0;
};

}  // namespace shardlens::fsdp
