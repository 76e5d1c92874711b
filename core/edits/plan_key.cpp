#include "core/edits/plan_key.h"

#include <array>

#include "core/base/error.h"

namespace shardlens::plan {
namespace {

using enum PlanKey;

constexpr uint64_t bit(PlanKey key) {
  return uint64_t{1} << static_cast<uint32_t>(key);
}

constexpr uint64_t kMeshSizes = bit(kMesh) | bit(kReplicas) | bit(kContext) | bit(kTensor);

// In the order of the enumerators.
constexpr std::array kRows{
    PlanKeyRow{
        kSharding, "sharding", "Sharding",
        "How parameters are distributed over the ranks (full shard frees them after "
        "forward, shard grad op keeps them in full until backward, kept over some ranks keeps "
        "them sharded over those, no shard gives each rank a replica)",
        bit(kUnits) | bit(kMesh) | bit(kReplicas) | bit(kReshard) | bit(kUnshardInBackward) |
            bit(kForwardPrefetch) | bit(kBackwardPrefetch)},
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
    PlanKeyRow{kReplicas, "mesh_replicate", "Replicas",
               "How many groups of ranks have the same shards and other data", kMeshSizes},
    PlanKeyRow{kContext, "mesh_context", "Context",
               "How many ranks divide each sequence between them", kMeshSizes},
    PlanKeyRow{kTensor, "mesh_tensor", "Tensor", "How many ranks divide each layer between them",
               kMeshSizes},
    PlanKeyRow{kExpert, "mesh_expert", "Experts", "How many ranks divide the experts between them",
               0},
    PlanKeyRow{
        kSequenceParallel, "sequence_parallel", "Sequence parallel",
        "With tensor above 1: whether ranks divide the sequence between the layers that they "
        "divide",
        0},
    PlanKeyRow{kLossParallel, "loss_parallel", "Loss parallel",
               "With tensor above 1: whether the loss is computed on a part of the vocabulary", 0},
    PlanKeyRow{kContextMethod, "context_method", "Keys and values",
               "With context above 1: how ranks get the keys and values of the others", 0},
    PlanKeyRow{kSaves, "checkpointing_saves", "Checkpoints keep",
               "Which results checkpointed modules keep besides their input", 0},
    PlanKeyRow{kOptimizerInBackward, "optimizer_in_backward", "Optimizer runs",
               "Whether a unit is updated as soon as its gradient is reduced", 0},
    PlanKeyRow{kReshardInBackward, "reshard_backward", "After backward",
               "Whether parameters are freed after the backward of each microbatch", 0},
    PlanKeyRow{kFrozen, "frozen", "Trained", "Whether the parameters of the module are trained", 0},
    PlanKeyRow{kGatherDtype, "gather_dtype", "Gathered in",
               "What all-gathers of linear layers carry; 8 bits need fp8 tensorwise products", 0},
    PlanKeyRow{kAllReduces, "all_reduces", "Replicas sum",
               "Which microbatches sum gradients over the replicas", 0},
    PlanKeyRow{kLimit, "limit_all_gathers", "Limiter",
               "Whether the host waits before it gathers too many units ahead", 0},
    PlanKeyRow{kViews, "views", "Views",
               "When the views of parameters are made: in each forward of a unit, or for all units "
               "when a step's forward begins",
               0},
    PlanKeyRow{kDivideFactor, "divide_factor", "Divide factor",
               "The number that reduced gradients are divided by", 0},
    PlanKeyRow{kUnusedParameters, "unused_parameters", "Find unused",
               "For replicated units: whether parameters without gradients are looked for", 0},
    PlanKeyRow{kStaticGraph, "static_graph", "Static graph",
               "For replicated units: whether all steps run the same operators", 0},
    PlanKeyRow{kBucketViews, "bucket_views", "Gradients are views",
               "For replicated units: whether gradients are views of their buckets", 0},
    PlanKeyRow{kExpertDispatch, "expert_dispatch", "Tokens of experts",
               "With experts above 1: how rows of tokens come to the ranks with their experts", 0},
    PlanKeyRow{kOutputDtype, "output_dtype", "Outputs", "The dtype that units' outputs are cast to",
               0},
    PlanKeyRow{kBufferDtype, "buffer_dtype", "Buffers",
               "The dtype that the modules' own buffers are cast to, under FSDP1", 0},
    PlanKeyRow{kCastInputs, "cast_inputs", "Inputs",
               "Whether units' inputs are cast to the dtype in which they compute; usually under "
               "FSDP2, and the root's under FSDP1",
               0},
    PlanKeyRow{kTensorStyle, "tensor_style", "Tensor style",
               "How the mesh's axis tensor divides the module's own parameters", 0},
    PlanKeyRow{kGroups, "parameter_groups", "Parameter groups",
               "Which parameters of the unit are gathered and reduced together, on which mesh and "
               "along which dimension",
               0},
    PlanKeyRow{kIgnored, "ignored", "Sharded",
               "Whether the module belongs to a unit; otherwise it is whole on every rank and its "
               "gradients are not reduced",
               0},
    PlanKeyRow{kReductionInputs, "reduction_inputs", "Reductions in flight",
               "How many reductions may be in flight before compute waits for the oldest", 0},
};

uint64_t decided(PlanKey key) {
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
