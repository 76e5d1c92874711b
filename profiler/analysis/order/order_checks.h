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
  // Whether a prefetch issued it, not the unit's own hook; nullopt: not known, as of those started.
  std::optional<bool> prefetched = std::nullopt;

  // The same collective of the same unit.
  friend bool operator==(const OrderEntry& a, const OrderEntry& b) {
    return a.kind == b.kind && a.unit == b.unit;
  }
};
[[nodiscard]] std::string to_string(const OrderEntry& entry);
// Equal, and both prefetched or both not, where that is known.
[[nodiscard]] bool same_issue(const OrderEntry& a, const OrderEntry& b);

// A collective that a step has more or less often than expected.
struct CountDifference {
  OrderEntry entry;
  int64_t expected = 0, found = 0;
};

struct Difference {  // where two orders differ first
  int64_t step = 0;
  int64_t index = 0;                          // from 0, among the step's collectives of units
  std::optional<OrderEntry> expected, found;  // nullopt: that sequence has ended

  std::vector<CountDifference> counts = {};  // of the whole step, in order of appearance

  // The collective expected, and found, for display: "nothing more" at the end of a sequence. If
  // only one was prefetched, the words say which.
  [[nodiscard]] std::string expected_words() const;
  [[nodiscard]] std::string found_words() const;
};

struct OrderCheck {      // two orders compared
  int64_t compared = 0;  // number of collectives; 0: one of the two sequences is not known
  std::optional<Difference> first_difference;
};

// Planned: the collectives that the schedule produces for the workload's step. Issued: all_gather,
// reduce_scatter and all_reduce actions in the trace, or those that shardlens.record saw PyTorch
// issue. Started: the collectives that those actions issued, those of each communicator by their
// start.
struct StepOrder {
  int64_t step = 0;
  std::vector<OrderEntry> planned, issued, started;
};

struct Order {  // of collectives: planned, issued, started
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
