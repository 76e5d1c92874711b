#include "core/base/collective.h"

#include <array>
#include <string>

namespace shardlens {
namespace {

struct CollectiveRow {
  CollectiveKind kind;
  std::string_view name, kineto,
      squeezed;  // squeezed: a substring of every c10d spelling without underscores
};

// In order of CollectiveKind. parse_collective takes the first row whose squeezed spelling occurs.
constexpr std::array<CollectiveRow, 7> kCollectiveRows{{
    {CollectiveKind::kAllGather, "all_gather", "_allgather_base", "allgather"},
    {CollectiveKind::kReduceScatter, "reduce_scatter", "_reduce_scatter_base", "reducescatter"},
    {CollectiveKind::kAllReduce, "all_reduce", "allreduce", "allreduce"},
    {CollectiveKind::kBroadcast, "broadcast", "broadcast", "broadcast"},
    {CollectiveKind::kAllToAll, "all_to_all", "all_to_all", "alltoall"},
    {CollectiveKind::kSendRecv, "send_recv", "send_recv", "sendrecv"},
    {CollectiveKind::kBarrier, "barrier", "barrier", "barrier"},
}};

}  // namespace

std::string_view name_of(CollectiveKind kind) {
  return kCollectiveRows[static_cast<size_t>(kind)].name;
}
std::string_view kineto_name(CollectiveKind kind) {
  return kCollectiveRows[static_cast<size_t>(kind)].kineto;
}

std::optional<CollectiveKind> parse_collective(std::string_view name) {
  std::string squeezed;
  for (const char c : name) {
    if (c != '_') {
      squeezed += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    }
  }
  if (squeezed.find("barrier") !=
      std::string::npos) {  // "all_reduce_barrier" is a barrier: it moves no data
    return CollectiveKind::kBarrier;
  }
  for (const CollectiveRow& r : kCollectiveRows) {
    if (squeezed.find(r.squeezed) != std::string::npos) {
      return r.kind;
    }
  }
  return std::nullopt;
}

}  // namespace shardlens
