#include "gui/model/run/exposed_list.h"

#include <algorithm>
#include <utility>

namespace shardlens::gui {

std::vector<ExposedCollective> exposed_within(const RankData& rank,
                                              const analysis::IntervalSet& window) {
  std::vector<ExposedCollective> out;
  for (const analysis::Partition::Owned& part : rank.partition.exposed_by_collective()) {
    const Nanoseconds exposed = analysis::length_within(window, part.when);
    if (exposed > 0) {
      if (out.empty() || out.back().collective != part.collective) {
        out.push_back({part.collective, 0});
      }
      out.back().exposed += exposed;
    }
  }
  out.shrink_to_fit();
  std::sort(out.begin(), out.end(), [](const ExposedCollective& a, const ExposedCollective& b) {
    return std::pair(b.exposed, a.collective) < std::pair(a.exposed, b.collective);
  });
  return out;
}

}  // namespace shardlens::gui
