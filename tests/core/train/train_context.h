#pragma once

#include "core/dist/world.h"
#include "core/models/model.h"
#include "core/train/trainer.h"

namespace shardlens::train {

// The context of a rank of `world`, without recorder, stop and checkpoints.
inline TrainContext context_of(models::CausalLm& model,
                               fsdp::ShardedModel& sharded,
                               dist::World& world,
                               const TokenFile& tokens) {
  TrainContext context;
  context.model = &model;
  context.sharded = &sharded;
  context.world = &world;
  context.tokens = &tokens;
  context.rank = world.rank();
  context.ranks = world.size();
  return context;
}

}  // namespace shardlens::train
