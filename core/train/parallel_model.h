#pragma once

#include <memory>

#include "core/fsdp/fully_shard.h"

namespace shardlens::train {

// Applies a plan to `model`: fully_shard to its sharded units, replicate() to the others, units of
// equal settings under one Reducer. The result is used the same way whatever the plan says:
// replicated parameters are whole in flat_shards(), slices() and between steps; gradients of both
// kinds make one norm; actions of both are numbered together, and the Reducer's buckets are
// recorded as units beyond the plan's own (schedule::bucket_name).
//
// Errors      as fully_shard and replicate.
[[nodiscard]] std::shared_ptr<fsdp::ShardedModel> apply_plan(
    const std::shared_ptr<torch::nn::Module>& model,
    const plan::ResolvedPlan& plan,
    const fsdp::Options& options);

}  // namespace shardlens::train
