#pragma once

#include <vector>

#include <QString>

#include "profiler/analysis/units/block_figures.h"

namespace shardlens::gui {

// Figures of blocks alike as text; names from the trace are not escaped. `units` are those that the
// block's positions refer to.

// "1.20 ms; median 0.10 ms, worst 0.70 ms (layers.5)"
[[nodiscard]] QString spread_text(const std::vector<analysis::UnitFigures>& units,
                                  const analysis::BlockSpread& spread);
// "layers.5 (0.70 ms), layers.7 (0.60 ms)", the worst first; empty without outliers.
[[nodiscard]] QString outliers_text(const std::vector<analysis::UnitFigures>& units,
                                    const analysis::BlockFigures& block);

}  // namespace shardlens::gui
