#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "profiler/analysis/overlap/frozen_views.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// Why a collective was exposed; docs/metrics.md explains how each cause is determined.
enum class ExposedCause : uint8_t {
  kFirst,
  kLast,
  kNoPrefetch,
  kLateHost,
  kQueued,
  kLimiter,
  kBandwidth,
  kFrozenViews,
  kHostIsCompute,
  kPeer,
};
inline constexpr int kExposedCauseCount = 10;
[[nodiscard]] std::string_view name_of(ExposedCause cause);  // "first", …
// Explains the cause and what helps, for display.
[[nodiscard]] std::string_view explanation_of(ExposedCause cause);

// Finds the cause of each exposed collective of a timeline.
//
// Ownership  refers to what it is given.
class ExposedCauses {
 public:
  // `frozen_views`: nullptr where none were found.
  ExposedCauses(const trace::Trace& trace,
                const Timeline& timeline,
                const FrozenViews* frozen_views);
  // Of Timeline::collectives[i], exposed in `exposed`, whose length is `length` > 0.
  [[nodiscard]] ExposedCause of(size_t i, const IntervalSet& exposed, Nanoseconds length) const;

 private:
  void find_ends_of_steps();
  [[nodiscard]] bool host_waited_in_call(const Collective& c) const;
  [[nodiscard]] ExposedCause all_gather_cause(const Collective& c,
                                              Nanoseconds issued,
                                              bool compute_beside) const;

  const trace::Trace& trace_;
  const Timeline& timeline_;
  const FrozenViews* frozen_views_;
  // By collective: latest end of earlier collectives on the same communicator.
  std::vector<std::optional<Nanoseconds>> before_;
  std::vector<bool> first_, last_;  // by collective: whether it is the first or last of its step
};

// Index of the step that contains `instant`; steps.size() if none does.
[[nodiscard]] size_t step_of(const std::vector<Step>& steps, Nanoseconds instant);

}  // namespace shardlens::analysis
