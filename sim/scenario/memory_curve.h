#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "sim/memory/peak_memory.h"
#include "sim/scenario/scenario.h"

namespace shardlens::sim {

// The memory of a rank through a predicted step.
struct MemoryCurve {
  struct Point {
    Nanoseconds time = 0;  // since the step began; see memory_curve()
    std::array<Bytes, kMemoryCategoryCount> bytes{};
    uint32_t changes = 0;  // `bytes` are the sums of this many of MemoryCurve::changes
    [[nodiscard]] Bytes sum() const {
      return std::accumulate(bytes.begin(), bytes.end(), Bytes{0});
    }
  };
  std::vector<Point> points;  // by time; each holds until the next one
  size_t peak = 0;            // index of the first of the highest points
  std::string at_peak;        // what the host does then: "aten::mm of layers.3, backward"
  Nanoseconds end = 0;        // of the step
  std::vector<MemoryChange> changes;
  std::vector<MemoryHolder> holders;
  std::vector<std::string> units;  // FQN of MemoryHolder::unit

  [[nodiscard]] bool empty() const { return points.empty(); }
  // The last point until `time`; requires points.
  [[nodiscard]] const Point& at(Nanoseconds time) const;
  // Bytes by holder at the point. Complexity: linear in the changes until then.
  [[nodiscard]] std::vector<Bytes> held_at(const Point& point) const;
  // FQN of the holder's unit ("" is the root); nullopt: it belongs to no unit.
  [[nodiscard]] std::optional<std::string> unit_of(const MemoryHolder& holder) const;
};

// The memory of a prediction with the details `timeline` and `history`. What an operator allocates
// is there when the operator runs. Other allocations, and what is freed, are where the host issues
// them or, on a device, where the operators that were issued before have ended: the order of the
// host, on the time of the device, which the host may be far ahead of.
[[nodiscard]] MemoryCurve memory_curve(const Prediction& prediction);

}  // namespace shardlens::sim
