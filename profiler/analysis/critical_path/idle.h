#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "profiler/analysis/events/intervals.h"
#include "profiler/analysis/timeline/dependencies.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// Idle time by its cause; the causes sum to WindowFigures::idle. docs/reference/metrics.md defines
// each.
struct IdleFigures {
  Nanoseconds host_late = 0;   // the next event had not been launched yet
  Nanoseconds event_wait = 0;  // the host waited for the device, or a stream for an event
  Nanoseconds gap = 0;         // launched and free to start, but not started
  Nanoseconds unknown = 0;     // the next event's launch is not in the trace
  // Parts of event_wait: between events of one CUDA graph; and inferred, because the trace has no
  // cuda_sync rows.
  Nanoseconds graph = 0, inferred = 0;
};

// One of them, for JSON, CSV and the files of summaries.
struct IdleFigureRow {
  std::string_view key;
  Nanoseconds IdleFigures::*member = nullptr;
  bool part = true;  // the parts sum to the idle time; others are only in summaries
};
[[nodiscard]] std::span<const IdleFigureRow> idle_figure_table();

enum class IdleCause : uint8_t { kHostLate, kEventWait, kGap, kUnknown };
inline constexpr int kIdleCauseCount = 4;
[[nodiscard]] std::string_view name_of(IdleCause cause);   // "host_late", …
[[nodiscard]] std::string_view words_of(IdleCause cause);  // "host late", …

// A stretch of idle time with one cause.
struct IdlePart {
  Interval when;
  IdleCause cause = IdleCause::kUnknown;
};

// Finds why nothing ran. On a CPU the host computes, so all idle time is host_late.
class IdleCauses {
 public:
  IdleCauses(const trace::Trace& trace, const Timeline& timeline, const Dependencies& dependencies);
  // `idle`: the length of `window` minus the time in which something ran.
  [[nodiscard]] IdleFigures within(const IntervalSet& window, Nanoseconds idle) const;
  // The stretches of `idle`, by start. Their lengths by cause are those of within() for a window of
  // which `idle` is all idle time.
  [[nodiscard]] std::vector<IdlePart> parts(const IntervalSet& idle) const;

 private:
  void explain(const trace::Trace& trace,
               const Timeline& timeline,
               const Dependencies& dependencies,
               const Interval& gap,
               size_t next,
               size_t latest);

  bool device_;
  UnionBuilder host_late_builder_, event_wait_builder_, gap_builder_, graph_builder_,
      inferred_builder_;
  IntervalSet host_late_, event_wait_, gap_, graph_, inferred_;
};

}  // namespace shardlens::analysis
