#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profiler/analysis/fsdp_log/fsdp_log.h"

namespace shardlens::analysis {

// One thing that a step did with a unit's parameters or gradients, as seen in the trace.
struct ObservedEvent {
  enum class What : uint8_t { kUnshard, kReshard, kReduce };
  What what = What::kUnshard;
  bool backward = false;
  uint32_t unit = 0;       // index into FsdpLog::units
  uint32_t hook_unit = 0;  // the unit whose hook did it; another one: a prefetch
  UnshardBy by = UnshardBy::kOwn;
  friend bool operator==(const ObservedEvent&, const ObservedEvent&) = default;
};
[[nodiscard]] std::string_view name_of(ObservedEvent::What what);  // "unshard", …
[[nodiscard]] std::string_view name_of(UnshardBy by);              // "own", "forward_prefetch", …

// Steps that did the same, one after the other or not.
struct ObservedOrder {
  std::vector<int64_t> steps;  // of ProfilerStep#k; without these, n-th forward of the root
  std::vector<ObservedEvent> events;
};

// In the order in which the host did it. FSDP leaves no range where forward frees parameters: that
// it did is told by the unit's later all-gather for backward.
[[nodiscard]] std::vector<ObservedOrder> observed_orders(const trace::Trace& trace,
                                                         const FsdpLog& log);

}  // namespace shardlens::analysis
