#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/resolved_plan.h"

namespace shardlens::plan {

// Bytes of a parameter on a rank before FSDP shards it, in the dtype in which it is trained.
[[nodiscard]] Bytes local_bytes(const ResolvedPlan& plan, uint32_t parameter, int64_t rank);

// Bytes of parameters that ranks keep between steps, padding included: their shards of all units,
// and the ignored parameters. Of the first ranks; those of rank r are at r modulo the size. Shards
// are padded to the same size, so only parts that the mesh divides unevenly differ between ranks.
[[nodiscard]] std::vector<Bytes> bytes_by_rank(const ResolvedPlan& plan);

}  // namespace shardlens::plan
