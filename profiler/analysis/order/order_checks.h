#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/collective.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/run.h"

namespace shardlens::analysis {

// A collective as people name it: "all_gather (model.layers.0)", "(root)" for the root.
struct OrderEntry {
  CollectiveKind kind = CollectiveKind::kAllGather;
  std::string unit;
  friend bool operator==(const OrderEntry&, const OrderEntry&) = default;
};
[[nodiscard]] std::string to_string(const OrderEntry& entry);

struct Difference {
  int64_t step = 0;
  int64_t index = 0;                          // from 0, among the collectives of units in that step
  std::optional<OrderEntry> expected, found;  // nullopt: that side has no more
};

struct OrderCheck {
  int64_t compared = 0;  // collectives; 0: one side is not in the trace
  std::optional<Difference> first_difference;
};

// Planned: what the schedule answers to the workload's step. Issued: all_gather, reduce_scatter and
// all_reduce actions. Started: the collectives that those actions issued, by start on their
// communicators' tracks.
struct StepOrder {
  int64_t step = 0;
  std::vector<OrderEntry> planned, issued, started;
};

struct Order {
  OrderCheck planned_vs_issued, issued_vs_started;
};

// `planned` may be null. Only steps of the timeline. A refusal of the schedule is a diagnostic.
[[nodiscard]] std::vector<StepOrder> step_orders(const trace::Trace& trace,
                                                 const Timeline& timeline,
                                                 const trace::PlannedInputs* planned,
                                                 std::vector<trace::Diagnostic>& diagnostics);
[[nodiscard]] Order check_order(const std::vector<StepOrder>& steps);

}  // namespace shardlens::analysis
