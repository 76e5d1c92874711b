#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// A collective with which a program gathers or reduces its own parameters.
struct ProgramMove {
  uint32_t collective = 0;           // index into Timeline::collectives
  bool backward = false;             // was called in backward
  uint32_t wait = trace::kNoIndex;   // the host's call that waits for it: an event
  std::vector<uint32_t> parameters;  // of Trace::sharded_parameters; empty: not known
};

// A forward of the program, and the backward after it.
struct GatheringPass {
  std::vector<ProgramMove> moves;       // in the order of the host's calls
  std::optional<Nanoseconds> backward;  // when the backward began
};

// [Note: Parts gathered again] Backward may gather a few small parameters of a unit again, while
// autograd kept the rest: a compiler keeps transposed weights of products, and gathers norms. Then
// backward does not wait for the unit where it waits for that gather. `part`, `whole`: elements
// that backward gathers of a unit, and those that forward gathered.
[[nodiscard]] constexpr bool gathers_unit(int64_t part, int64_t whole) {
  return part > 0 && part >= whole - part;
}

// Those of a timeline of the trace with Timeline::rewritten.
[[nodiscard]] std::vector<GatheringPass> gathering_passes(const trace::Trace& trace,
                                                          const Timeline& timeline);

}  // namespace shardlens::analysis
