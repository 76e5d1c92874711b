#include "core/edits/plan_key.h"

#include <array>

#include "core/base/error.h"

namespace shardlens::plan {
namespace {

using enum PlanKey;

constexpr uint32_t bit(PlanKey key) {
  return 1U << static_cast<uint32_t>(key);
}

// In the order of the enumerators.
constexpr std::array kRows{
    PlanKeyRow{
        kSharding, "Sharding",
        "How parameters are distributed over the ranks (full shard frees them after "
        "forward, shard grad op keeps them in full until backward, kept over some ranks keeps "
        "them sharded over those, no shard gives each rank a replica)",
        bit(kUnits) | bit(kMesh) | bit(kReshard) | bit(kForwardPrefetch) | bit(kBackwardPrefetch)},
    PlanKeyRow{kUnits, "Units", "Which modules are sharded together", bit(kUnit)},
    PlanKeyRow{kUnit, "Unit", "Whether the module is a unit, sharded separately", 0},
    PlanKeyRow{kMesh, "Mesh", "Over how many ranks each replica is sharded", 0},
    PlanKeyRow{kReshard, "Reshard",
               "Whether the unit's parameters are freed between forward and backward", 0},
    PlanKeyRow{kForwardPrefetch, "Prefetch in forward",
               "How many later units are gathered in forward before a unit computes", 0},
    PlanKeyRow{kBackwardPrefetch, "Prefetch in backward",
               "When the next unit is gathered in backward: before or after the compute of this "
               "one",
               0},
    PlanKeyRow{kCommunicators, "Communicators",
               "Whether reduce-scatters have a process group of their own", 0},
    PlanKeyRow{kPrecision, "Precision",
               "Dtypes of stored and gathered parameters and of reduced gradients", 0},
    PlanKeyRow{kDialect, "Order of events",
               "Whether work is issued in the order of FSDP2 or of FSDP1", bit(kBackwardPrefetch)},
    PlanKeyRow{kLayout, "Layout",
               "How a unit is sharded: as one flat parameter, or each parameter separately", 0},
    PlanKeyRow{kApi, "Strategy", "Which API shards the unit", 0},
    PlanKeyRow{kCheckpoints, "Checkpoints", "Which blocks run again in backward", 0},
    PlanKeyRow{kOffload, "CPU offload",
               "Whether the host keeps shards and optimizer states, and runs the optimizer", 0},
    PlanKeyRow{kBuckets, "Buckets", "Size of DDP's buckets of gradients", 0},
    PlanKeyRow{kMicrobatches, "Microbatches", "How the samples of a step are divided", 0},
    PlanKeyRow{kGradientSync, "Reduced", "Which microbatches reduce gradients", 0},
};

uint32_t decided(PlanKey key) {
  return bit(key) | plan_key(key).decides;
}

}  // namespace

const PlanKeyRow& plan_key(PlanKey key) {
  const PlanKeyRow& row = kRows.at(static_cast<size_t>(key));
  SHARDLENS_CHECK(row.key == key, "a row of another key");
  return row;
}

bool exclude_each_other(PlanKey a, PlanKey b) {
  return (decided(a) & decided(b)) != 0;
}

}  // namespace shardlens::plan
