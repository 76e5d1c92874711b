#pragma once

#include <cstdint>
#include <optional>

#include "core/base/collective.h"
#include "core/base/units.h"

namespace shardlens::analysis {

// Bytes that cross each rank's link in an optimal ring algorithm, per byte of message: bus
// bandwidth is algorithm bandwidth times this factor. The message is the larger buffer (all-gather
// output, reduce-scatter input). nullopt: a barrier, which moves no data, or the group's size is
// not known.
//
// Source  NVIDIA nccl-tests, doc/PERFORMANCE.md.
[[nodiscard]] std::optional<double> bus_factor(CollectiveKind kind, int64_t ranks);

// GB/s = bytes per nanosecond. nullopt without bytes or time.
[[nodiscard]] std::optional<double> gigabytes_per_second(double bytes, Nanoseconds time);

}  // namespace shardlens::analysis
