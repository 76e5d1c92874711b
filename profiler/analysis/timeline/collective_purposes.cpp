// Infers what the collectives are for that neither FSDP nor DDP issued.
#include <optional>

#include "profiler/analysis/timeline/communicator_of.h"
#include "profiler/analysis/timeline/sources.h"
#include "profiler/trace/parallel_axes.h"

namespace shardlens::analysis {
namespace {

using trace::ParallelAxis;

Purpose purpose_on(std::optional<ParallelAxis> axis) {
  if (!axis) {
    return Purpose::kOther;
  }
  switch (*axis) {
    case ParallelAxis::kTensor:
      return Purpose::kActivations;
    case ParallelAxis::kExpert:
      return Purpose::kTokens;
    case ParallelAxis::kContext:
      return Purpose::kContext;
    case ParallelAxis::kData:
    case ParallelAxis::kPipeline:
      break;
  }
  return Purpose::kOther;
}

// The section takes precedence over the group: the norm and the loss are reduced over the ranks of
// every axis.
Purpose purpose_of(const trace::Trace& trace, const Collective& c) {
  switch (c.section) {
    case Section::kClip:
      return Purpose::kNorm;
    case Section::kLoss:
      return Purpose::kLoss;
    case Section::kOptimizer:
      return Purpose::kOther;
    default:
      return purpose_on(trace::axis_of(group_description(trace, c)));
  }
}

}  // namespace

void find_purposes(const Sources& sources, Timeline& timeline) {
  for (Collective& c : timeline.collectives) {
    if (c.purpose == Purpose::kOther) {
      c.purpose = purpose_of(sources.trace, c);
    }
  }
}

}  // namespace shardlens::analysis
