#pragma once

#include <cstdint>
#include <functional>

#include "core/json/json_reader.h"
#include "sim/hardware/hardware_spec.h"

namespace shardlens::sim {

// Reads "kind", "ranks" (2 to `most_ranks`) and "points" ([bytes, time], bytes ascending) of a
// measured curve. The caller checks the other keys and the number of points. `microseconds` reads a
// time.
// Errors: InputError with file and position.
[[nodiscard]] CollectiveCurve read_curve(
    const plan::JsonNode& node,
    int64_t most_ranks,
    const std::function<double(const plan::JsonNode& time)>& microseconds);

}  // namespace shardlens::sim
