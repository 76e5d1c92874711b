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
  // Blocks until the unit's parameters are whole; once, further calls do nothing.
  void wait();

 private:
  std::weak_ptr<FsdpState> state_;
};

// A unit while it trains: what PyTorch's FSDPModule adds to a module. Settings take effect from the
// next forward or backward of a unit on; `recurse`: the units below it too.
//
// [Note: Equal on all ranks] Settings decide which collectives are issued: all ranks make the same.
//
// Ownership  keeps neither model nor root alive; after them every call is an error.
// Threads    the thread that trains.
// Errors     UsageError naming the unit: a setting that its dialect has not, a module that is no
//            unit of this root, parameters in use.
// Source     torch/distributed/fsdp/_fully_shard/_fully_shard.py (FSDPModule), torch 2.11.
class ShardedUnit {
 public:
  // Errors: UsageError for a module that fully_shard was not applied to.
  explicit ShardedUnit(const std::shared_ptr<torch::nn::Module>& module);

  // False: gradients stay unsharded, and are added up (no_sync).
  void set_requires_gradient_sync(bool sync, bool recurse = true) const;
  // Hybrid sharding. False: gradients are reduce-scattered, and their sum is kept back from the
  // all-reduce over the replicas.
  void set_requires_all_reduce(bool all_reduce, bool recurse = true) const;
  void set_reshard_after_forward(bool reshard, bool recurse = true) const;
  // False: parameters stay whole between the microbatches of a step.
  void set_reshard_after_backward(bool reshard, bool recurse = true) const;
  // Of the whole root. False: its next backwards neither wait for their reductions nor forget the
  // order of forwards.
  void set_is_last_backward(bool last) const;
  // False: its backward needs no parameters (embeddings), so none are gathered.
  void set_unshard_in_backward(bool unshard) const;
  // Units to gather when this one's forward (backward) begins; none: the dialect's default.
  using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;
  void set_modules_to_forward_prefetch(const Modules& modules) const;
  void set_modules_to_backward_prefetch(const Modules& modules) const;
  // Reductions divide by this instead of by the number of ranks. Errors: unless it is finite and
  // positive, and in dialect fsdp1.
  void set_gradient_divide_factor(double factor) const;

  // Gathers the unit's parameters, not those of units below: at once, or (async) in the background
  // until the handle is waited for. Does nothing where they are whole already.
  UnshardHandle unshard(bool async = false) const;
  // Frees the unit's whole parameters. Does nothing where there are none.
  void reshard() const;

 private:
  void set(schedule::Setting::Kind kind, bool flag, bool recurse) const;
  void set_prefetch(schedule::Setting::Kind kind, const Modules& modules) const;

  std::weak_ptr<FsdpState> state_;
};

}  // namespace shardlens::fsdp
