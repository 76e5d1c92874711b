#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace shardlens {

enum class CollectiveKind : uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kAllToAll,
  kSendRecv,
  kBarrier
};

// "all_gather", …: used as keys of `analyze --json` and in messages.
[[nodiscard]] std::string_view name_of(CollectiveKind kind);
// "_allgather_base", "_reduce_scatter_base", "allreduce", …: values of Kineto's `Collective name`
// argument.
[[nodiscard]] std::string_view kineto_name(CollectiveKind kind);
// Parses any name that c10d or Kineto writes ("_allgather_base",
// "all_gather_into_tensor_coalesced", "allreduce", …).
[[nodiscard]] std::optional<CollectiveKind> parse_collective(std::string_view name);

}  // namespace shardlens
