#include "profiler/analysis/figures/communication_figures.h"

#include <map>
#include <tuple>
#include <utility>

namespace shardlens::analysis {

std::vector<CommunicationFigures> communication_figures(const WindowGroups& groups,
                                                        const Timeline& timeline,
                                                        const Partition& partition,
                                                        const IntervalSet& window) {
  struct Sum {
    CommunicationFigures figures;
    UnionBuilder busy;
  };
  std::map<std::tuple<Purpose, uint32_t, std::optional<CollectiveKind>>, Sum> sums;
  for (size_t i = 0; i < timeline.collectives.size(); ++i) {
    const Collective& c = timeline.collectives[i];
    if (groups.of[i] == trace::kNoIndex) {
      continue;
    }
    Sum& sum = sums[{c.purpose, groups.of[i], c.kind}];
    const bool starts_here = contains(window, c.when.start);
    sum.figures.count = sum.figures.count.value_or(0) + (starts_here ? 1 : 0);
    sum.figures.bytes += starts_here ? c.bytes : 0;
    sum.figures.exposed += partition.exposed_length(i, window);
    sum.busy.add(c.when);
  }
  std::vector<CommunicationFigures> out;
  for (auto& [key, sum] : sums) {
    CommunicationFigures& made = out.emplace_back(std::move(sum.figures));
    const WindowGroups::Group& group = groups.groups[std::get<uint32_t>(key)];
    made.purpose = std::get<Purpose>(key);
    made.kind = std::get<std::optional<CollectiveKind>>(key);
    made.group = group.name;
    made.ranks = group.size;
    made.busy = shared_length(sum.busy.take(), window);
  }
  return out;
}

}  // namespace shardlens::analysis
