#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::check {

// What a step did, without times. It is exact, so any difference is a difference of the program.

// A collective, in the order of its stream (or communicator).
struct StreamItem {
  std::string unit;  // FQN; "": the root; without a unit: "<loss>", "<none>", …
  std::string part;  // with a unit: "all_gather_forward", …; else the kind: "all_reduce"
  Bytes bytes = 0;   // the larger message; 0: not in the trace
  auto operator<=>(const StreamItem&) const = default;
};

// An operation of the host on a unit, in the order of the host. The host's order is compared
// because, across streams, the order of starts depends on timing, but the host's order does not.
struct HostItem {
  std::string what;  // "unshard", "reshard", "reduce"
  std::string unit;
  bool backward = false;
  std::string hook_unit;  // the unit whose hook did it
  std::string by;         // for an unshard: "own", "backward_prefetch", …
  auto operator<=>(const HostItem&) const = default;
};

struct StepStructure {
  std::vector<std::vector<StreamItem>> streams;  // sorted, because stream names differ between runs
  std::vector<HostItem> order;                   // empty: the trace has no FSDP ranges
  Bytes unsharded_peak = 0;  // maximum of gathered bytes, in the order of the host
  auto operator<=>(const StepStructure&) const = default;
};

// What a rank did in the steps of a run; several variants if the steps differ.
struct RankStructure {
  struct Variant {
    StepStructure structure;
    int64_t steps = 0;
  };
  int64_t rank = 0;
  std::vector<Variant> variants;  // the most frequent first
};

// The structure of the steps with the numbers `steps`. A collective belongs to the step in which
// the host issued it.
[[nodiscard]] RankStructure structure_of(const trace::Trace& trace,
                                         const analysis::Timeline& timeline,
                                         const std::vector<int64_t>& steps);

// One difference, with a text for either side.
struct StructuralDifference {
  // "unit", "count", "bytes", "stream", "prefetch", "order", "unsharded_bytes"
  std::string kind;
  std::string unit;  // "": the root, or all units for "stream" and "unsharded_bytes"
  std::string baseline, candidate;
  std::vector<int64_t> ranks;
  bool operator==(const StructuralDifference&) const = default;
};

// Differences by unit, the most important kinds first: units, prefetch, counts, bytes, streams,
// order, unsharded bytes. If the units themselves differ, prefetch and order are not compared.
// Complexity: O(n log n) in the items.
[[nodiscard]] std::vector<StructuralDifference> differences(const StepStructure& baseline,
                                                            const StepStructure& candidate);

// For display: "(root)" for "", "[a, b]" for modules that are sharded together.
[[nodiscard]] std::string unit_name(const std::string& fqn);

}  // namespace shardlens::check
