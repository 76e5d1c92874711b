#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/base/units.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::sim {

// Steps whose forward and backward a CUDA graph replayed.
//
// [Note: Steps of CUDA graphs] The operators, hooks and kernels are those of a step that ran
// outside of the graph, with its kernels' times. The host's part of forward and backward is one
// launch, and the time that is compared is that of the replayed steps. A step in which the graph
// was captured is neither: its host did all the work, and its device ran the graph.
struct CapturedSteps {
  std::vector<Nanoseconds> durations;  // of all ranks
  Nanoseconds idle = 0;  // the median of the time in which the device had nothing to do
};

// nullopt: no step replays a graph.
[[nodiscard]] std::optional<CapturedSteps> captured_steps(
    std::span<const trace::Trace> traces, std::span<const analysis::Timeline> timelines);

// When the host launched CUDA graphs.
class GraphLaunches {
 public:
  GraphLaunches(const trace::Trace& trace, const analysis::Timeline& timeline);
  [[nodiscard]] bool any_in(const analysis::Step& step) const;

 private:
  std::vector<Nanoseconds> times_;  // sorted
};

}  // namespace shardlens::sim
