#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::check {

// What a step did, without times: exact, so that any difference is one of the program.

// A collective in the order of its stream (or communicator).
struct StreamItem {
  std::string unit;  // FQN; "" is the root; what belongs to no unit "<loss>", "<none>", …
  std::string part;  // "all_gather_forward", … of a unit, else the kind: "all_reduce"
  Bytes bytes = 0;   // the larger of its messages; 0: not in the trace
  auto operator<=>(const StreamItem&) const = default;
};

// Something that the host did with a unit, in the order in which it did it: across streams, starts
// depend on timing, what the host issued does not.
struct HostItem {
  std::string what;  // "unshard", "reshard", "reduce"
  std::string unit;
  bool backward = false;
  std::string hook_unit;  // whose hook did it
  std::string by;         // of an unshard: "own", "backward_prefetch", …
  auto operator<=>(const HostItem&) const = default;
};

struct StepStructure {
  std::vector<std::vector<StreamItem>> streams;  // sorted: streams have no names that last
  std::vector<HostItem> order;                   // empty: the trace has no ranges of FSDP
  Bytes unsharded_peak = 0;  // the most bytes gathered at once, as the host frees them
  auto operator<=>(const StepStructure&) const = default;
};

// What a rank did in the steps of a run; more than one variant where they differ.
struct RankStructure {
  struct Variant {
    StepStructure structure;
    int64_t steps = 0;
  };
  int64_t rank = 0;
  std::vector<Variant> variants;  // the most frequent first
};

// Of the steps numbered `steps`. A collective belongs to the step in which the host issued it.
[[nodiscard]] RankStructure structure_of(const trace::Trace& trace,
                                         const analysis::Timeline& timeline,
                                         const std::vector<int64_t>& steps);

// One difference, in words on either side.
struct StructuralDifference {
  // "unit", "count", "bytes", "stream", "prefetch", "order", "unsharded_bytes"
  std::string kind;
  std::string unit;  // "" is the root; of streams and bytes in flight, all units
  std::string baseline, candidate;
  std::vector<int64_t> ranks;
  bool operator==(const StructuralDifference&) const = default;
};

// By unit, what a reader should look at first coming first: units, prefetch, counts, bytes,
// streams, order, bytes in flight. Where the units themselves differ, prefetch and order are not
// compared. Complexity: O(n log n) in the items.
[[nodiscard]] std::vector<StructuralDifference> differences(const StepStructure& baseline,
                                                            const StepStructure& candidate);

// For people: "(root)" for "", "[a, b]" of modules that are sharded together.
[[nodiscard]] std::string unit_name(const std::string& fqn);

}  // namespace shardlens::check
