#include "core/base/collective.h"

#include <array>
#include <string>

namespace shardlens {
namespace {

// How much of a message crosses each link of a ring: twice or once (ranks - 1) / ranks of it, all,
// or nothing.
enum class Traffic : uint8_t { kTwice, kOnce, kWhole, kNone };

struct CollectiveRow {
  CollectiveKind kind;
  Purpose sharding;  // see sharding_purpose()
  Traffic traffic;
  std::string_view name;      // ours
  std::string_view kineto;    // Kineto's
  std::string_view squeezed;  // a substring of every c10d spelling without underscores
  std::string_view kernel;    // NCCL's
};

// By CollectiveKind. Order matters to parse_collective: the first row whose squeezed spelling
// occurs wins.
constexpr std::array<CollectiveRow, kCollectiveKindCount> kCollectiveRows{{
    {CollectiveKind::kAllGather, Purpose::kGatherParameters, Traffic::kOnce, "all_gather",
     "_allgather_base", "allgather", "ncclDevKernel_AllGather"},
    {CollectiveKind::kReduceScatter, Purpose::kReduceGradients, Traffic::kOnce, "reduce_scatter",
     "_reduce_scatter_base", "reducescatter", "ncclDevKernel_ReduceScatter"},
    {CollectiveKind::kAllReduce, Purpose::kReduceReplicas, Traffic::kTwice, "all_reduce",
     "allreduce", "allreduce", "ncclDevKernel_AllReduce"},
    {CollectiveKind::kBroadcast, Purpose::kOther, Traffic::kWhole, "broadcast", "broadcast",
     "broadcast", "ncclDevKernel_Broadcast"},
    {CollectiveKind::kAllToAll, Purpose::kOther, Traffic::kOnce, "all_to_all", "all_to_all",
     "alltoall", "ncclDevKernel_SendRecv"},
    {CollectiveKind::kSendRecv, Purpose::kOther, Traffic::kWhole, "send_recv", "send_recv",
     "sendrecv", "ncclDevKernel_SendRecv"},
    {CollectiveKind::kBarrier, Purpose::kOther, Traffic::kNone, "barrier", "barrier", "barrier",
     "ncclDevKernel_AllReduce"},
}};

// A kind without a row does not compile.
consteval bool every_kind_has_its_row() {
  for (size_t i = 0; i < kCollectiveRows.size(); ++i) {
    if (static_cast<size_t>(kCollectiveRows[i].kind) != i || kCollectiveRows[i].name.empty()) {
      return false;
    }
  }
  return true;
}
static_assert(every_kind_has_its_row());

constexpr std::array<std::string_view, kPurposeCount> kPurposes{"gather_parameters",
                                                                "reduce_gradients",
                                                                "reduce_replicas",
                                                                "activations",
                                                                "tokens",
                                                                "context",
                                                                "norm",
                                                                "loss",
                                                                "other"};
static_assert(!kPurposes.back().empty());  // an enumerator without a name does not compile

}  // namespace

std::string_view name_of(Purpose purpose) {
  return kPurposes[static_cast<size_t>(purpose)];
}

std::string_view name_of(CollectiveKind kind) {
  return kCollectiveRows[static_cast<size_t>(kind)].name;
}
std::string_view kineto_name(CollectiveKind kind) {
  return kCollectiveRows[static_cast<size_t>(kind)].kineto;
}

std::string_view kernel_name(CollectiveKind kind) {
  return kCollectiveRows[static_cast<size_t>(kind)].kernel;
}

Purpose sharding_purpose(const std::optional<CollectiveKind>& kind) {
  return kind ? kCollectiveRows[static_cast<size_t>(*kind)].sharding : Purpose::kOther;
}

std::optional<double> bus_factor(CollectiveKind kind, int64_t ranks) {
  if (ranks < 1) {
    return std::nullopt;
  }
  const auto n = static_cast<double>(ranks);
  switch (kCollectiveRows[static_cast<size_t>(kind)].traffic) {
    case Traffic::kTwice:
      return 2 * (n - 1) / n;
    case Traffic::kOnce:
      return (n - 1) / n;
    case Traffic::kWhole:
      return 1;
    case Traffic::kNone:
      return std::nullopt;
  }
  return std::nullopt;
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
