#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/analysis/exposed/frozen_views.h"
#include "profiler/analysis/figures/window_figures.h"
#include "profiler/analysis/timeline/dependencies.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// Work that the run did not need; docs/reference/metrics.md defines each kind.
enum class WasteKind : uint8_t {
  kGatheredAgain,  // a unit was gathered more often than its forwards and backwards need
  kUnusedGather,   // nothing waited for the result of an all-gather
  kCastAgain,      // a unit's parameters were cast again, although no optimizer had changed them
  kFrozenViews,
  kLateBucket,          // a bucket waited long for its last gradient
  kSlowInGraph,         // a collective took longer in a CUDA graph than outside
  kHostSync,            // the host waited for the device, which then ran out of work
  kRootGatheredAgain,   // the root was gathered in backward too
  kUnalignedMessage,    // a rank's part of a message was no multiple of 16 bytes
  kSharedCommunicator,  // the last: experts and FSDP waited for each other
};
inline constexpr int kWasteKindCount = static_cast<int>(WasteKind::kSharedCommunicator) + 1;
[[nodiscard]] std::string_view name_of(WasteKind kind);         // "gathered_again", in JSON
[[nodiscard]] std::string_view explanation_of(WasteKind kind);  // for display, with what helps

struct Waste {  // work that the step does not need
  WasteKind kind = WasteKind::kGatheredAgain;
  std::string where;     // a unit, a bucket, or the operator in which the host waited
  int64_t count = 0;     // how often, in all steps
  Nanoseconds lost = 0;  // exposed or idle time that would be gone at least in part
};

// The waste that one trace proves; the most expensive first.
//
// Complexity  O(n log n).
[[nodiscard]] std::vector<Waste> find_waste(const trace::Trace& trace,
                                            const Timeline& timeline,
                                            const Partition& partition,
                                            const Dependencies& dependencies,
                                            const FrozenViews* frozen_views,
                                            const IntervalSet& window);

}  // namespace shardlens::analysis
