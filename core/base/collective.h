#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace shardlens {

enum class CollectiveKind : uint8_t {  // what a collective does, as NCCL names it
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kAllToAll,
  kSendRecv,
  kBarrier,  // the last
};
inline constexpr size_t kCollectiveKindCount = static_cast<size_t>(CollectiveKind::kBarrier) + 1;

// What communication is for. docs/reference/metrics.md says how it is inferred for a recorded
// collective.
enum class Purpose : uint8_t {
  kGatherParameters,
  kReduceGradients,  // over the ranks that shard the parameters
  kReduceReplicas,   // gradients, over the ranks that have copies of a shard
  kActivations,      // parts of activations and of their gradients, between ranks that divide an
                     // operator (tensor and sequence parallelism)
  kTokens,           // sent to their experts and back
  kContext,          // keys and values of the other parts of a sequence
  kNorm,             // of the gradients
  kLoss,
  kOther,  // the last
};
inline constexpr size_t kPurposeCount = static_cast<size_t>(Purpose::kOther) + 1;
// "gather_parameters", "reduce_gradients", …: used in JSON.
[[nodiscard]] std::string_view name_of(Purpose purpose);
// The purpose for which FSDP and DDP themselves issue collectives of this kind; kOther: they issue
// none, or the kind is not known.
[[nodiscard]] Purpose sharding_purpose(const std::optional<CollectiveKind>& kind);

// "all_gather", …: used as keys of `analyze --json` and in messages.
[[nodiscard]] std::string_view name_of(CollectiveKind kind);
// "_allgather_base", "_reduce_scatter_base", "allreduce", …: values of Kineto's `Collective name`
// argument.
[[nodiscard]] std::string_view kineto_name(CollectiveKind kind);
// "ncclDevKernel_AllGather", …: how the names of NCCL's kernels begin.
[[nodiscard]] std::string_view kernel_name(CollectiveKind kind);
// Bytes that cross each rank's link in an optimal ring, per byte of message: bus bandwidth is
// algorithm bandwidth times this. The message is the larger buffer (all-gather output,
// reduce-scatter input). nullopt: a barrier moves nothing, or the group's size is not known.
//
// Source  NVIDIA nccl-tests, doc/PERFORMANCE.md.
[[nodiscard]] std::optional<double> bus_factor(CollectiveKind kind, int64_t ranks);
// Parses any name that c10d or Kineto writes ("_allgather_base",
// "all_gather_into_tensor_coalesced", "allreduce", …).
[[nodiscard]] std::optional<CollectiveKind> parse_collective(std::string_view name);

}  // namespace shardlens
