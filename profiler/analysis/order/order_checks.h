#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/collective.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/run.h"

namespace shardlens::analysis {

// A collective for display: "all_gather (model.layers.0)"; "(root)" for the root.
struct OrderEntry {
  CollectiveKind kind = CollectiveKind::kAllGather;
  std::string unit;
  friend bool operator==(const OrderEntry&, const OrderEntry&) = default;
};
[[nodiscard]] std::string to_string(const OrderEntry& entry);

struct Difference {
  int64_t step = 0;
  int64_t index = 0;                          // from 0, among the step's collectives of units
  std::optional<OrderEntry> expected, found;  // nullopt: that sequence has ended
};

struct OrderCheck {
  int64_t compared = 0;  // number of collectives; 0: one of the two sequences is not known
  std::optional<Difference> first_difference;
};

// Planned: the collectives that the schedule produces for the workload's step. Issued: all_gather,
// reduce_scatter and all_reduce actions in the trace, or those that shardlens.record saw PyTorch
// issue. Started: the collectives that those actions issued, by start on their communicators'
// tracks.
struct StepOrder {
  int64_t step = 0;
  std::vector<OrderEntry> planned, issued, started;
};

struct Order {
  OrderCheck planned_vs_issued, issued_vs_started;
};

// The orders for the steps of the timeline. `planned` may be null. If the schedule cannot be
// computed, there is a diagnostic.
[[nodiscard]] std::vector<StepOrder> step_orders(const trace::Trace& trace,
                                                 const Timeline& timeline,
                                                 const trace::PlannedInputs* planned,
                                                 std::vector<trace::Diagnostic>& diagnostics);
[[nodiscard]] Order check_order(const std::vector<StepOrder>& steps);

}  // namespace shardlens::analysis
