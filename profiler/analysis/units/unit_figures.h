#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/analysis/exposed/collective_causes.h"
#include "profiler/analysis/figures/window_figures.h"
#include "profiler/analysis/timeline/timeline.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// The collectives of one part of one unit.
struct PartFigures {
  int64_t count = 0;
  Bytes bytes = 0;
  Nanoseconds busy = 0;  // length of the union of their times
  Nanoseconds exposed = 0;
  std::optional<Nanoseconds> lead;    // median of needed_at − end; negative: late
  std::optional<ExposedCause> cause;  // the cause with the most exposed time; nullopt: not exposed
  std::optional<schedule::Cause> issued_by;  // the most frequent cause
};

// The collectives of UnitPart::kOther, by what they are called.
struct NamedPart {
  std::string name;  // as collective_label()
  PartFigures figures;
};

struct UnitFigures {  // a unit's collectives and compute
  // "": the root. Work of no unit: "<loss>", "<clip>", "<optimizer>", "<none>".
  std::string fqn;
  bool is_unit = true;                                           // false: work of no unit
  std::array<std::optional<PartFigures>, kUnitPartCount> parts;  // by UnitPart; nullopt: none ran
  std::vector<NamedPart> others;  // divides parts[kOther]; the most exposed first
  // Only for traces with FSDP ranges, otherwise 0. The compute of all owners sums to
  // WindowFigures::compute, their exposed copies to WindowFigures::exposed_copy.
  Nanoseconds compute_forward = 0, compute_backward = 0;  // only for units
  Nanoseconds compute = 0;                                // their sum, or the compute of no unit
  Nanoseconds exposed_copy = 0;
  [[nodiscard]] Nanoseconds exposed() const;
};

// One collective, copy or run of compute, and its owner.
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
  Interval when;         // for compute and copies: first start to last end
  Nanoseconds busy = 0;  // time within `when` in which an event ran
  std::optional<Nanoseconds> issued, needed_at;
  Nanoseconds exposed = 0;
  std::optional<ExposedCause> cause;
  std::vector<CauseProof> proof;          // only of UnitContext::explained
  uint32_t collective = trace::kNoIndex;  // index into Timeline::collectives
  std::optional<Purpose> purpose;         // collectives
  std::optional<UnitPart> part;           // collectives
  std::string name;                       // collectives: as collective_label()
  std::string module;                     // collectives: see Collective::module; "": not known
  Basis basis = Basis::kNone;             // how its unit was found; of compute: of its first event
  std::optional<schedule::Cause> issued_by;
  Bytes bytes = 0;
  // needed_at minus end; negative: how late it was.
  [[nodiscard]] std::optional<Nanoseconds> slack() const {
    return needed_at ? std::optional(*needed_at - when.end) : std::nullopt;
  }
};
[[nodiscard]] std::string_view name_of(UnitSpan::Kind kind);  // "all_gather", "copy_out", …

struct FrozenViews;
struct UnitWork;

struct UnitContext {                           // what unit_figures may use; all optional
  const FrozenViews* frozen_views = nullptr;   // null: none
  const UnitWork* work = nullptr;              // of the window; null: computed where needed
  const Dependencies* dependencies = nullptr;  // of the timeline; null: found again
  // Spans of this unit get the proof of their cause. nullptr: none.
  const std::string* explained = nullptr;
  bool open_causes = false;  // causes follow later from settle_causes()
};

// An exposed collective and where its cause counts.
struct UnitExposure {
  Exposure exposure;
  uint32_t unit = 0;                 // position in UnitGathering::units
  UnitPart part = UnitPart::kOther;  // of the unit
  uint32_t other = trace::kNoIndex;  // position in UnitFigures::others, for UnitPart::kOther
};

// The units of a rank as far as its own trace shows them.
struct UnitGathering {
  std::vector<UnitFigures> units;       // PartFigures::cause is not set
  std::vector<UnitExposure> exposures;  // by collective
};
[[nodiscard]] UnitGathering gather_units(const trace::Trace& trace,
                                         const Timeline& timeline,
                                         const Partition& partition,
                                         const IntervalSet& window,
                                         const UnitContext& context);
// Sets the causes of units and of spans of the same window.
void settle_causes(const std::vector<UnitExposure>& exposures,
                   const SettledCauses& causes,
                   std::vector<UnitFigures>& units);
void settle_causes(const std::vector<UnitExposure>& exposures,
                   const SettledCauses& causes,
                   std::vector<UnitSpan>& spans);

// One entry per unit, in the order of Timeline::units; exposed times sum to
// Partition::figures(window).exposed_comm.
[[nodiscard]] std::vector<UnitFigures> unit_figures(const trace::Trace& trace,
                                                    const Timeline& timeline,
                                                    const Partition& partition,
                                                    const IntervalSet& window,
                                                    const UnitContext& context);

// All spans that start within `window`, by start; collective_spans() returns only collectives. With
// UnitContext::open_causes, spans have no cause, and an incomplete proof.
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
