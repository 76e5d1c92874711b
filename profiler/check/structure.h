#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/units.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/check/statistics.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::check {

// The structure of a step: what it did, without times. It is exact, so any difference is a
// difference of the program.

inline constexpr Bytes kVaries = -1;  // a size that varies from step to step

// A collective, in the order of its stream (or communicator).
struct StreamItem {
  std::string unit;  // FQN; "": the root; without a unit: "<loss>", "<none>", …
  std::string part;  // with a unit: "all_gather_forward", …; else the kind: "all_reduce"
  Bytes bytes = 0;   // the larger message; 0: not in the trace; kVaries
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

struct StepStructure {  // what a step does, without times
  // Sorted, because stream names differ between runs. All collectives of Gloo's pool are one.
  std::vector<std::vector<StreamItem>> streams;
  std::vector<HostItem> order;  // empty: the trace has no FSDP ranges
  // Maximum of gathered bytes, in the order of the host; kVaries if a gathered size varies.
  Bytes unsharded_peak = 0;
  auto operator<=>(const StepStructure&) const = default;
};

// The structure of a rank's steps in a run; several variants if the steps differ.
//
// [Note: Sizes that vary] The messages of a mixture of experts, or of sequences of any length, have
// other sizes in each step of the same program. Where the sizes of a unit's part (or, without a
// unit, of a kind) differ between steps that have equally many of them, the structure has kVaries,
// and the bytes of each step are kept: they are compared as distributions.
struct RankStructure {
  using Key = std::pair<std::string, std::string>;  // unit, part: as in StreamItem
  struct Variant {
    StepStructure structure;
    int64_t steps = 0;
  };
  int64_t rank = 0;
  std::vector<Variant> variants;               // the most frequent first
  std::map<Key, std::vector<double>> varying;  // bytes of each step
};

// The keys whose sizes vary between the steps of all these runs of one rank.
[[nodiscard]] std::set<RankStructure::Key> varying_keys(
    const std::vector<const RankStructure*>& runs);
// The same structure with kVaries for these keys.
[[nodiscard]] StepStructure without_sizes(StepStructure step,
                                          const std::set<RankStructure::Key>& keys);
// Adds the bytes of each step of a run; of steps without the key, 0.
void add_bytes_of_steps(const RankStructure& run, const RankStructure::Key& key, Sample& bytes);

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
