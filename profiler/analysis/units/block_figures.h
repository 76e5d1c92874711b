#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/analysis/units/unit_figures.h"

namespace shardlens::analysis {

// One figure of blocks alike.
struct BlockSpread {
  Nanoseconds sum = 0, median = 0, worst = 0;
  uint32_t worst_unit = 0;  // position in the units; the first one with the worst value
};

// The blocks alike of a model, "layers.0" to "layers.79": units whose names differ only in numbers,
// and that have the same parts.
struct BlockFigures {
  std::string name;             // "layers.0 to 79"; "layers.* (12)" where several numbers differ
  std::vector<uint32_t> units;  // positions in the units, in their order
  BlockSpread exposed, compute;
  // By UnitPart; units without the part do not count.
  std::array<std::optional<BlockSpread>, kUnitPartCount> parts;
  // Units whose exposed time is far from that of the others: by more than half of the median and
  // five times the median distance from it, and by 50 us.
  std::vector<uint32_t> outliers;
};

// Only of three units or more; in order of the first unit.
[[nodiscard]] std::vector<BlockFigures> block_figures(const std::vector<UnitFigures>& units);

}  // namespace shardlens::analysis
