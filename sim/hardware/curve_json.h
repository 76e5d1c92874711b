#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/units.h"
#include "core/json/json_reader.h"
#include "sim/hardware/hardware_spec.h"

namespace shardlens::sim {

// Reads a list of [bytes, time], bytes ascending, as a vector of {bytes, us}. `microseconds` reads
// a time. Errors: InputError with file and position.
template <typename Point>
[[nodiscard]] std::vector<Point> read_points(
    const plan::JsonNode& node,
    const std::function<double(const plan::JsonNode& time)>& microseconds) {
  constexpr Bytes kLargest = Bytes{1} << 50;
  std::vector<Point> out;
  for (const plan::JsonNode& each : node.items("points [bytes, microseconds]")) {
    const std::vector<plan::JsonNode> pair = each.items("[bytes, microseconds]");
    if (pair.size() != 2) {
      each.fail("expected [bytes, microseconds]");
    }
    const Bytes before = out.empty() ? 0 : out.back().bytes;
    out.push_back({pair[0].integer(before + 1, kLargest), microseconds(pair[1])});
  }
  return out;
}

// Reads "kind", "ranks" (2 to `most_ranks`) and "points" ([bytes, time], bytes ascending) of a
// measured curve. The caller checks the other keys and the number of points. `microseconds` reads a
// time.
// Errors: InputError with file and position.
[[nodiscard]] CollectiveCurve read_curve(
    const plan::JsonNode& node,
    int64_t most_ranks,
    const std::function<double(const plan::JsonNode& time)>& microseconds);

}  // namespace shardlens::sim
