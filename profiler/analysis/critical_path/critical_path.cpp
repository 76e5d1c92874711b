#include "profiler/analysis/critical_path/critical_path.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "profiler/analysis/critical_path/path_walk.h"

namespace shardlens::analysis {

std::string_view name_of(Bound bound) {
  constexpr std::string_view kNames[] = {"compute", "communication", "copy",
                                         "host",    "launch",        "idle"};
  return kNames[static_cast<size_t>(bound)];
}

Bound CriticalPath::bound() const {
  return static_cast<Bound>(std::max_element(lengths.begin(), lengths.end()) - lengths.begin());
}

PathFinder::PathFinder(std::vector<PathRank> ranks) : ranks_(std::move(ranks)) {
  for (const PathRank& rank : ranks_) {
    links_.push_back(rank.timeline.device ? device_links(rank) : host_links(rank));
  }
}

PathFinder::~PathFinder() = default;

std::vector<CriticalPath> PathFinder::of(uint32_t rank) const {
  std::vector<CriticalPath> out;
  for (const Step& step : ranks_[rank].timeline.steps) {
    CriticalPath& path = out.emplace_back();
    path.step = step.number;
    PathSpent spent(ranks_, rank, step.window, path);
    if (ranks_[rank].timeline.device) {
      walk_device(ranks_, links_, spent);
    } else {
      walk_host(ranks_, links_, spent);
    }
    std::reverse(path.segments.begin(), path.segments.end());
  }
  return out;
}

std::vector<PathPart> PathFinder::parts(const CriticalPath& path) const {
  std::map<std::tuple<uint32_t, Bound, trace::StringId>, PathPart> sums;
  for (const PathSegment& segment : path.segments) {
    const trace::Trace& trace = ranks_[segment.rank].trace;
    const trace::StringId name =
        segment.event == trace::kNoIndex ? trace::kEmptyString : trace.events[segment.event].name;
    PathPart& part = sums[{segment.rank, segment.bound, name}];
    if (part.count++ == 0) {
      part.rank = trace.metadata.rank.value_or(segment.rank);
      part.bound = segment.bound;
      part.name = trace.strings.view(name);
    }
    part.length += segment.when.length();
  }
  std::vector<PathPart> out;
  for (auto& [key, part] : sums) {
    out.push_back(std::move(part));
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const PathPart& a, const PathPart& b) { return a.length > b.length; });
  return out;
}

}  // namespace shardlens::analysis
