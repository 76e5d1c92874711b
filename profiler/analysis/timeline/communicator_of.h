#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <tuple>

#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// The key that distinguishes a rank's communicators: name and ranks of the process group; without
// them, its place in the trace's list of groups; without that, the collective's track.
using CommunicatorKey = std::tuple<trace::StringId, trace::StringId, uint32_t, uint32_t>;

// The communicator of a collective of the trace.
[[nodiscard]] inline CommunicatorKey communicator_of(const trace::Trace& trace,
                                                     const Collective& collective) {
  if (collective.args != trace::kNoIndex) {
    const trace::CollectiveArgs& args = trace.collectives[collective.args];
    if (args.group != trace::kEmptyString) {
      return {args.group, args.group_ranks, trace::kNoIndex, trace::kNoIndex};
    }
  }
  const bool listed = collective.listed_group != trace::kNoIndex;
  return {trace::kEmptyString, trace::kEmptyString, collective.listed_group,
          listed ? trace::kNoIndex : collective.track};
}

// Finds process groups in the trace's list. Arguments name a group; a collective of a CUDA graph
// has none, and the group of the one that it repeats.
class ListedGroups {
 public:
  explicit ListedGroups(const trace::Trace& trace) : trace_(trace) {
    for (uint32_t i = 0; i < trace.metadata.groups.size(); ++i) {
      const auto [known, fresh] = by_name_.emplace(trace.metadata.groups[i].name, i);
      known->second = fresh ? i : trace::kNoIndex;  // a name of several groups
    }
  }
  // The place in the list of the group; kNoIndex: not listed, or not known.
  [[nodiscard]] uint32_t of(const Collective& collective) const {
    if (collective.args == trace::kNoIndex ||
        trace_.collectives[collective.args].group == trace::kEmptyString) {
      return collective.listed_group;
    }
    const auto found =
        by_name_.find(trace_.strings.view(trace_.collectives[collective.args].group));
    return found == by_name_.end() ? trace::kNoIndex : found->second;
  }

 private:
  const trace::Trace& trace_;
  std::map<std::string_view, uint32_t> by_name_;
};

// The description of its process group ("mesh_tp"); "": not in the trace.
[[nodiscard]] inline std::string_view group_description(const trace::Trace& trace,
                                                        const Collective& collective) {
  std::string_view out;
  if (collective.args != trace::kNoIndex &&
      trace.collectives[collective.args].group != trace::kEmptyString) {
    out = trace.strings.view(trace.collectives[collective.args].group_description);
  }
  const bool listed = collective.listed_group != trace::kNoIndex;
  return out.empty() && listed ? trace.metadata.groups[collective.listed_group].description : out;
}

}  // namespace shardlens::analysis
