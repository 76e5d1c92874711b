#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/schedule/action.h"
#include "profiler/analysis/events/intervals.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::gui {

// An action of the host for a unit, from a capture, or from PyTorch's FSDP as shardlens.record saw
// it.
struct IssuedAction {
  std::string unit;  // FQN; "" is the root
  schedule::Op op = schedule::Op::kAllGather;
  Nanoseconds start = 0;  // the rank's own time
  uint32_t seq = 0;
};
// In the order of the host; empty for traces without actions.
[[nodiscard]] std::vector<IssuedAction> issued_actions(const trace::Trace& trace);

// A time in which a rank holds all parameters of a unit, or receives them, as the host issued it.
struct Residency {
  std::string unit;         // FQN; "" is the root
  analysis::Interval when;  // from the issue of the all-gather until the parameters are given back
  Nanoseconds usable = 0;   // from here on the unit has its parameters
};
// By start. What is never given back lasts until the trace's last event.
[[nodiscard]] std::vector<Residency> residencies_of(const trace::Trace& trace);
// When the device of a trace has these parameters: it receives them while their all-gather runs,
// and has them until all kernels that were launched before the host freed them have ended. Those of
// a trace without a device are returned as they are.
[[nodiscard]] std::vector<Residency> on_device(std::vector<Residency> issued,
                                               const analysis::Timeline& timeline);
// The units of which the rank holds all parameters at the instant, by their first use.
[[nodiscard]] std::vector<std::string> gathered_at(const std::vector<Residency>& residencies,
                                                   Nanoseconds instant);

}  // namespace shardlens::gui
