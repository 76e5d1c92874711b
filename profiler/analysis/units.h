#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/analysis/figures.h"
#include "profiler/analysis/timeline.h"
#include "profiler/trace/trace.h"

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
  std::string fqn;      // "" is the root
  bool is_unit = true;  // false: collectives that belong to no unit (loss, gradient norm)
  std::array<std::optional<PartFigures>, kUnitPartCount> parts;  // by UnitPart; nullopt: none ran
  [[nodiscard]] Nanoseconds exposed() const;
};

struct FrozenViews;

struct UnitContext {
  const FrozenViews* frozen_views = nullptr;  // null: none
};

// By unit, in the order of Timeline::units; exposed times sum to
// Partition::figures(window).exposed_comm.
[[nodiscard]] std::vector<UnitFigures> unit_figures(const trace::Trace& trace,
                                                    const Timeline& timeline,
                                                    const Partition& partition,
                                                    const IntervalSet& window,
                                                    const UnitContext& context);

}  // namespace shardlens::analysis
