#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profiler/analysis/fsdp_log/fsdp_log.h"

namespace shardlens::analysis {

// One operation of a step on a unit's parameters or gradients, as observed in the trace.
struct ObservedEvent {
  enum class What : uint8_t { kUnshard, kReshard, kReduce };
  What what = What::kUnshard;
  bool backward = false;
  uint32_t unit = 0;       // index into FsdpLog::units
  uint32_t hook_unit = 0;  // the unit whose hook did it; differs from `unit` for a prefetch
  UnshardBy by = UnshardBy::kOwn;
  friend bool operator==(const ObservedEvent&, const ObservedEvent&) = default;
};
[[nodiscard]] std::string_view name_of(ObservedEvent::What what);  // "unshard", …
[[nodiscard]] std::string_view name_of(UnshardBy by);              // "own", "forward_prefetch", …

// Steps with the same sequence of operations; they need not be consecutive.
struct ObservedOrder {
  // Numbers k of ProfilerStep#k; without these, numbers of the root's forward.
  std::vector<int64_t> steps;
  std::vector<ObservedEvent> events;
};

// Events are in the order of the host. FSDP records no range when forward frees parameters, so this
// is inferred from a later all-gather of the unit for backward.
[[nodiscard]] std::vector<ObservedOrder> observed_orders(const trace::Trace& trace,
                                                         const EventLists& lists,
                                                         const FsdpLog& log);

}  // namespace shardlens::analysis
