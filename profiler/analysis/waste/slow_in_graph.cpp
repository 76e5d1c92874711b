#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "core/base/format_bytes.h"
#include "profiler/analysis/events/names.h"
#include "profiler/analysis/timeline/communicator_of.h"
#include "profiler/analysis/waste/waste_rules.h"

namespace shardlens::analysis {
namespace {

// Collectives that do the same on one communicator, outside of CUDA graphs and in them.
struct Alike {
  std::optional<Nanoseconds> outside;  // the shortest; it did not wait for another rank
  Nanoseconds in_graph = std::numeric_limits<Nanoseconds>::max();
  std::vector<size_t> captured;  // indices into Timeline::collectives
};

bool in_graph(const trace::Trace& trace, const Collective& c) {
  const trace::DeviceArgs* device = trace.device(trace.events[c.event]);
  return (device != nullptr && device->graph_node > 0) ||
         (c.issuer != trace::kNoIndex && is_graph_launch(trace.name(trace.events[c.issuer])));
}

}  // namespace

void find_slow_in_graph(const WasteInput& in, FoundWaste& found) {
  using Key = std::tuple<CollectiveKind, Bytes, uint32_t>;  // with the group's place in the list
  const ListedGroups list(in.trace);
  std::map<Key, Alike> all;
  for (size_t i = 0; i < in.timeline.collectives.size(); ++i) {
    const Collective& c = in.timeline.collectives[i];
    const uint32_t group = list.of(c);
    if (!c.kind || c.bytes == 0 || group == trace::kNoIndex || !contains(in.window, c.when.start)) {
      continue;
    }
    Alike& alike = all[{*c.kind, c.bytes, group}];
    if (!in_graph(in.trace, c)) {
      alike.outside = std::min(alike.outside.value_or(c.when.length()), c.when.length());
    } else {
      alike.in_graph = std::min(alike.in_graph, c.when.length());
      alike.captured.push_back(i);
    }
  }
  for (const auto& [key, alike] : all) {
    // Below a quarter more it may be chance.
    constexpr double kMuchLonger = 1.25;
    if (!alike.outside || alike.captured.empty() ||
        static_cast<double>(alike.in_graph) <= kMuchLonger * static_cast<double>(*alike.outside)) {
      continue;
    }
    const Nanoseconds longer = alike.in_graph - *alike.outside;
    Nanoseconds lost = 0;
    for (const size_t i : alike.captured) {
      lost += std::min(longer, length_of(in.partition.exposed(i, in.window)));
    }
    found.add(WasteKind::kSlowInGraph,
              fmt::format("{} of {}", name_of(std::get<0>(key)), format_bytes(std::get<1>(key))),
              lost, static_cast<int64_t>(alike.captured.size()));
  }
}

}  // namespace shardlens::analysis
