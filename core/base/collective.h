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

// What a collective does for sharded training: figures by unit, spans and colours follow from it.
enum class CollectiveRole : uint8_t {
  kGather,         // of parameters
  kReduceScatter,  // of gradients
  kAllReduce,      // of gradients
  kOther,
};
[[nodiscard]] CollectiveRole role_of(CollectiveKind kind);
// kOther where the kind is not known.
[[nodiscard]] CollectiveRole role_of(const std::optional<CollectiveKind>& kind);

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
