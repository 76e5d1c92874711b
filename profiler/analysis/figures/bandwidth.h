#pragma once

#include <optional>

#include "core/base/units.h"

namespace shardlens::analysis {

// GB/s = bytes per nanosecond. nullopt without bytes or time.
[[nodiscard]] std::optional<double> gigabytes_per_second(double bytes, Nanoseconds time);

}  // namespace shardlens::analysis
