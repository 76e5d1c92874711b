#pragma once

#include <optional>

#include "core/base/collective.h"
#include "core/schedule/action.h"

namespace shardlens::schedule {

// The collective that `op` issues; nullopt if `op` is not a collective.
[[nodiscard]] constexpr std::optional<CollectiveKind> collective_of(Op op) {
  switch (op) {
    case Op::kAllGather:
      return CollectiveKind::kAllGather;
    case Op::kReduceScatter:
      return CollectiveKind::kReduceScatter;
    case Op::kAllReduce:
      return CollectiveKind::kAllReduce;
    default:
      return std::nullopt;
  }
}

}  // namespace shardlens::schedule
