#pragma once

#include <memory>
#include <vector>

#include "core/schedule/schedule.h"

namespace torch::nn {
class Module;
}

namespace shardlens::fsdp {

class FsdpState;
class Root;

// An all-gather that ShardedUnit::unshard() issued.
class UnshardHandle {
 public:
  UnshardHandle() = default;
  explicit UnshardHandle(std::weak_ptr<FsdpState> state) : state_(std::move(state)) {}
  // Blocks until the unit's parameters are unsharded. Later calls do nothing.
  void wait();

 private:
  std::weak_ptr<FsdpState> state_;
};

// Settings and operations of a unit during training, like PyTorch's FSDPModule. Settings take
// effect at the next forward or backward of a unit. `recurse`: apply the setting to the units below
// too.
//
// [Note: Equal on all ranks] Settings determine which collectives are issued, so all ranks must
// make the same settings.
//
// Ownership  keeps neither model nor root alive; after their destruction every call is an error.
// Threads    the thread that trains.
// Errors     UsageError naming the unit, for a setting that its dialect does not have, a module
//            that is not a unit of this root, or parameters in use.
// Source     torch/distributed/fsdp/_fully_shard/_fully_shard.py (FSDPModule), torch 2.11.
class ShardedUnit {
 public:
  // Errors: UsageError for a module that fully_shard was not applied to.
  explicit ShardedUnit(const std::shared_ptr<torch::nn::Module>& module);

  // False: gradients are accumulated unsharded (no_sync).
  void set_requires_gradient_sync(bool sync, bool recurse = true) const;
  // Hybrid sharding. False: gradients are reduce-scattered and accumulated, but not all-reduced
  // over the replicas.
  void set_requires_all_reduce(bool all_reduce, bool recurse = true) const;
  void set_reshard_after_forward(bool reshard, bool recurse = true) const;
  // False: parameters stay unsharded between the microbatches of a step.
  void set_reshard_after_backward(bool reshard, bool recurse = true) const;
  // For the whole root. False: the next backwards do not clear the order of forwards, and wait for
  // their reductions only at their end, when gradients are published.
  void set_is_last_backward(bool last) const;
  // False: its backward needs no parameters (embeddings), so none are gathered.
  void set_unshard_in_backward(bool unshard) const;
  // Units to prefetch when the forward (backward) of this one begins; empty: the dialect's default.
  using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;
  void set_modules_to_forward_prefetch(const Modules& modules) const;
  void set_modules_to_backward_prefetch(const Modules& modules) const;
  // Reductions divide by `factor` instead of by the number of ranks. Errors: if it is not finite
  // and positive, and in dialect fsdp1.
  void set_gradient_divide_factor(double factor) const;

  // All-gathers the unit's parameters, but not those of units below, and waits for them. If
  // `async`, it does not wait; call wait() of the result. Does nothing if they are unsharded
  // already.
  UnshardHandle unshard(bool async = false) const;
  // Frees the unit's unsharded parameters, if there are any.
  void reshard() const;

 private:
  void set(schedule::Setting::Kind kind, bool flag, bool recurse) const;
  void set_prefetch(schedule::Setting::Kind kind, const Modules& modules) const;

  std::weak_ptr<FsdpState> state_;
};

}  // namespace shardlens::fsdp
