#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/analysis/overlap/window_figures.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// Why a collective was exposed; docs/metrics.md says how each is told.
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
// What it means and what helps, for people.
[[nodiscard]] std::string_view explanation_of(ExposedCause cause);

// The collectives of one part of one unit.
struct PartFigures {
  int64_t count = 0;
  Bytes bytes = 0;
  Nanoseconds busy = 0;  // |∪ of them|
  Nanoseconds exposed = 0;
  std::optional<Nanoseconds> lead;    // median over them of needed_at − end; negative: late
  std::optional<ExposedCause> cause;  // with the most exposed time; nullopt: not exposed
  std::optional<schedule::Cause> issued_by;  // the most frequent
};

struct UnitFigures {
  std::string
      fqn;  // "" is the root; of what is no unit "<loss>", "<clip>", "<optimizer>", "<none>"
  bool is_unit = true;                                           // false: what belongs to no unit
  std::array<std::optional<PartFigures>, kUnitPartCount> parts;  // by UnitPart; nullopt: none ran
  // Of traces with FSDP ranges, else 0. All owners' compute sums to Figures::compute, exposed
  // copies to Figures::exposed_copy.
  Nanoseconds compute_forward = 0, compute_backward = 0;  // of a unit
  Nanoseconds compute = 0;                                // the two, or what is no unit computed
  Nanoseconds exposed_copy = 0;
  [[nodiscard]] Nanoseconds exposed() const;
};

// One collective, copy or run of compute, and whose it was.
struct UnitSpan {
  enum class Kind : uint8_t {
    kAllGather,
    kReduceScatter,
    kAllReduce,
    kOther,
    kCopyOut,
    kCopy,
    kCompute
  };
  Kind kind = Kind::kCompute;
  std::string owner;  // as UnitFigures::fqn
  bool is_unit = true;
  Section section = Section::kNone;
  std::optional<int64_t> step;
  Interval when;         // of compute and copies: first start to last end
  Nanoseconds busy = 0;  // the time of it in which something of it ran
  std::optional<Nanoseconds> issued, needed_at;
  Nanoseconds exposed = 0;
  std::optional<ExposedCause> cause;
  std::optional<schedule::Cause> issued_by;
  Bytes bytes = 0;
  // needed-at minus end; negative: late by so much.
  [[nodiscard]] std::optional<Nanoseconds> slack() const {
    return needed_at ? std::optional(*needed_at - when.end) : std::nullopt;
  }
};
[[nodiscard]] std::string_view name_of(UnitSpan::Kind kind);  // "all_gather", "copy_out", …

struct FrozenViews;
struct UnitWork;

struct UnitContext {
  const FrozenViews* frozen_views = nullptr;  // null: none
  const UnitWork* work = nullptr;             // unit_work()'s; null: asked for where it is needed
};

// By unit, in the order of Timeline::units; exposed times sum to
// Partition::figures(window).exposed_comm.
[[nodiscard]] std::vector<UnitFigures> unit_figures(const trace::Trace& trace,
                                                    const Timeline& timeline,
                                                    const Partition& partition,
                                                    const IntervalSet& window,
                                                    const UnitContext& context);

// Everything that starts within `window`, by start; collective_spans() only the collectives of it.
[[nodiscard]] std::vector<UnitSpan> unit_spans(const trace::Trace& trace,
                                               const Timeline& timeline,
                                               const Partition& partition,
                                               const IntervalSet& window,
                                               const UnitContext& context);
[[nodiscard]] std::vector<UnitSpan> collective_spans(const trace::Trace& trace,
                                                     const Timeline& timeline,
                                                     const Partition& partition,
                                                     const IntervalSet& window,
                                                     const UnitContext& context);

}  // namespace shardlens::analysis
