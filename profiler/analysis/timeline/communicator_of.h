#pragma once

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
