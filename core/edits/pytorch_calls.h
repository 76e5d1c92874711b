#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan/plan.h"
#include "core/tree/module_tree.h"

namespace shardlens::plan {

// Lines of a PyTorch program that make one change of a sharding plan, for the API that the plan's
// dialect is of: fully_shard (FSDP2) or FullyShardedDataParallel (FSDP1). `model` is the model.
//
// Ownership  refers to the tree.
// Source     torch.distributed.fsdp, torch 2.11.
class PytorchCalls {
 public:
  using Lines = std::vector<std::string>;

  PytorchCalls(const ModuleTree& tree, Dialect dialect) : tree_(tree), dialect_(dialect) {}

  [[nodiscard]] Lines reshard(bool after_forward) const;
  // Only these modules keep their parameters after forward.
  [[nodiscard]] Lines keep(const std::vector<std::string>& modules) const;
  // These modules are not gathered in backward.
  [[nodiscard]] static Lines no_backward_gather(const std::vector<std::string>& modules);
  [[nodiscard]] Lines forward_prefetch(int64_t depth) const;
  [[nodiscard]] Lines backward_prefetch() const;
  [[nodiscard]] static Lines separate_reduce_scatter_group();
  [[nodiscard]] static Lines reduction_inputs(int64_t count);
  // Units of `together` blocks each (0: the model is one unit). Other numbers than 0, here and in
  // checkpoints(), need a model with blocks.
  [[nodiscard]] Lines units(size_t together) const;
  // Units of their own for modules outside the blocks.
  [[nodiscard]] Lines own_units(const std::vector<std::string>& modules) const;
  // `tensor`, `context`: ranks of tensor and context parallelism, which stay as they are. FSDP
  // shards over `shard` and `context` together.
  [[nodiscard]] Lines mesh(int64_t replicate,
                           int64_t shard,
                           int64_t tensor = 1,
                           int64_t context = 1) const;
  [[nodiscard]] Lines replicate() const;
  // One of every `every` blocks is checkpointed; 0: none.
  [[nodiscard]] Lines checkpoints(size_t every) const;
  [[nodiscard]] Lines microbatches(int64_t batch, int64_t accumulate) const;
  [[nodiscard]] Lines sync_last_microbatch() const;
  [[nodiscard]] Lines buckets(double megabytes) const;

 private:
  // "blocks = …".
  [[nodiscard]] std::string blocks() const;

  const ModuleTree& tree_;
  Dialect dialect_;
};

}  // namespace shardlens::plan
