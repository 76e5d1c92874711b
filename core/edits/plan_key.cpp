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
        kSharding, "sharding", "Sharding",
        "How parameters are distributed over the ranks (full shard frees them after "
        "forward, shard grad op keeps them in full until backward, kept over some ranks keeps "
        "them sharded over those, no shard gives each rank a replica)",
        bit(kUnits) | bit(kMesh) | bit(kReshard) | bit(kUnshardInBackward) | bit(kForwardPrefetch) |
            bit(kBackwardPrefetch)},
    PlanKeyRow{kUnits, "units", "Units", "Which modules are sharded together",
               bit(kUnit) | bit(kUnshardInBackward)},
    PlanKeyRow{kUnit, "unit", "Unit", "Whether the module is a unit, sharded separately", 0},
    PlanKeyRow{kMesh, "mesh", "Mesh", "Over how many ranks each replica is sharded", 0},
    PlanKeyRow{kReshard, "reshard", "Reshard",
               "Whether the unit's parameters are freed between forward and backward", 0},
    PlanKeyRow{kUnshardInBackward, "unshard_backward", "Gather in backward",
               "Whether the unit's parameters are gathered for a backward that does not read them",
               0},
    PlanKeyRow{kForwardPrefetch, "prefetch_forward", "Prefetch in forward",
               "How many later units are gathered in forward before a unit computes", 0},
    PlanKeyRow{kBackwardPrefetch, "prefetch_backward", "Prefetch in backward",
               "When the next unit is gathered in backward: before or after the compute of this "
               "one",
               0},
    PlanKeyRow{kCommunicators, "communicators", "Communicators",
               "Whether reduce-scatters have a process group of their own", 0},
    PlanKeyRow{kPrecision, "precision", "Precision",
               "Dtypes of stored and gathered parameters and of reduced gradients", 0},
    PlanKeyRow{kDialect, "dialect", "Order of events",
               "Whether work is issued in the order of FSDP2 or of FSDP1", bit(kBackwardPrefetch)},
    PlanKeyRow{kLayout, "layout", "Layout",
               "How a unit is sharded: as one flat parameter, or each parameter separately", 0},
    PlanKeyRow{kApi, "api", "Strategy", "Which API shards the unit", 0},
    PlanKeyRow{kCheckpoints, "checkpoints", "Checkpoints", "Which blocks run again in backward", 0},
    PlanKeyRow{kOffload, "offload", "CPU offload",
               "Whether the host keeps shards and optimizer states, and runs the optimizer", 0},
    PlanKeyRow{kBuckets, "buckets", "Buckets", "Size of DDP's buckets of gradients", 0},
    PlanKeyRow{kMicrobatches, "microbatches", "Microbatches",
               "How the samples of a step are divided", 0},
    PlanKeyRow{kGradientSync, "gradient_sync", "Reduced", "Which microbatches reduce gradients", 0},
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
