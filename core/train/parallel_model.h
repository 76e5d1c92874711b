#pragma once

#include <memory>

#include "core/fsdp/apply/fully_shard.h"

namespace shardlens::train {

// Applies a plan to `model`: fully_shard to its sharded units, replicate() to the others, with one
// Reducer for all units with the same settings. The result has the same interface for every plan:
// replicated parameters are unsharded in flat_shards(), in slices() and between steps; gradients of
// both kinds are in one norm; actions of both are numbered together, and the Reducers' buckets are
// recorded as units with ids after the plan's own (schedule::bucket_name).
//
// Errors      those of fully_shard and replicate.
[[nodiscard]] std::shared_ptr<fsdp::ShardedModel> apply_plan(
    const std::shared_ptr<torch::nn::Module>& model,
    const plan::ResolvedPlan& plan,
    const fsdp::Options& options);

}  // namespace shardlens::train
