#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <QString>

#include "core/base/collective.h"
#include "gui/model/lanes/launch_links.h"
#include "gui/model/lanes/level_of_detail.h"
#include "gui/model/lanes/live_figures.h"
#include "gui/model/lanes/queue_curve.h"
#include "gui/model/lanes/residency.h"
#include "profiler/analysis/analysis.h"
#include "profiler/analysis/timeline/regions.h"
#include "profiler/trace/run.h"

namespace shardlens::gui {

// The kind of an item on the timeline; each has its own hue.
enum class Kind : uint8_t {
  kCompute,
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kOtherComm,
  kCopy,
  kHost
};
inline constexpr int kKindCount = 7;
// By purpose. A collective of unknown purpose gets the purpose for which FSDP would issue it.
[[nodiscard]] Kind kind_of(const analysis::Collective& collective);
[[nodiscard]] const char* label_of(Kind kind);  // "compute", "all-gather", …
// "all-gather", "all-reduce, activations", "send recv", …: with the purpose if FSDP and DDP
// themselves do not communicate for it.
[[nodiscard]] QString label_of(const analysis::Collective& collective);

// A row of the timeline under its rank.
//
// Layout  `ref` of an item: kEvents an index into Trace::events, kCollectives and kExposed into
//         Timeline::collectives, kSections into Timeline::sections.parts(), kResidency into
//         RankData::residencies, kIdle into RankData::idle(), kRegions into RankData::regions.
struct Lane {
  enum class Source : uint8_t {
    kEvents,
    kCollectives,
    kExposed,
    kSections,
    kResidency,
    kIdle,
    kRegions
  };
  static constexpr char kOperators[] = "operators";
  static constexpr char kCalls[] = "launches";
  Kind kind = Kind::kCompute;
  Source source = Source::kEvents;
  std::vector<LaneRow> rows;   // more than one if items overlap
  const char* name = nullptr;  // kOperators or kCalls, of a device's trace; otherwise nullptr
  QString thread = {};         // of nested operators; otherwise ""
};

// What the analysis found out about a collective in addition to Timeline::collectives.
struct CollectiveSpan {
  std::optional<int64_t> step;  // ProfilerStep#k
  uint32_t owner = 0;           // without a unit: index into RankData::no_units
  std::optional<analysis::ExposedCause> cause;
  analysis::UnitPart part = analysis::UnitPart::kOther;
};

// One rank, prepared for drawing and for queries.
//
// Units  times of the rank's own clock; RunData::shown() converts them to display time.
class RankData {
 public:
  RankData(const trace::Trace& trace,
           const analysis::RankAnalysis& figures,
           const analysis::Timeline& timeline,
           const trace::PlannedInputs* planned);

  const trace::Trace& trace;
  const analysis::RankAnalysis& figures;
  const analysis::Timeline& timeline;
  analysis::Partition partition;
  LiveFigures live;
  // Exposed intervals of a collective. Over all collectives their lengths sum to exposed_comm.
  [[nodiscard]] analysis::IntervalSet exposed(uint32_t collective) const {
    return partition.exposed(collective);
  }
  std::vector<Lane> lanes;                  // only lanes that are not empty
  std::vector<analysis::StepOrder> orders;  // planned, issued and started collectives, per step
  std::vector<Residency> residencies;       // on_device(); empty for traces without actions
  std::vector<Residency> allocations;       // the same, as the host issued them
  std::vector<analysis::Region> regions;    // compiled code and CUDA graphs, by start
  LaunchLinks links;                        // of traces of a device; otherwise empty
  QueueCurve queue;                         // as links
  std::vector<std::string> no_units;        // owners of collectives without a unit: "<clip>", …
  Nanoseconds shift = 0;                    // offset of the rank's clock; set by RunData

  // When the device had nothing to do, and why, by start; empty for traces without a device.
  [[nodiscard]] const std::vector<analysis::IdlePart>& idle() const { return figures.detail->idle; }
  // nullptr: the collective is outside of the time that the figures cover.
  [[nodiscard]] const CollectiveSpan* span_of(uint32_t collective) const;
  // From its end until it was needed, of a collective with a span; negative: it ended too late.
  [[nodiscard]] std::optional<Nanoseconds> slack_of(uint32_t collective) const;
  // The unit (FQN, "" for the root) or section ("<clip>") that the collective belongs to.
  [[nodiscard]] std::string owner_of(uint32_t collective) const;
  // The unit ("(root)" for the root) or section that the host was working on when it launched the
  // event; "": unknown.
  [[nodiscard]] std::string owner_of_event(uint32_t event) const;
  // How the unit or section of an event of compute or copies was found; kNone: by a range of the
  // host, or not at all.
  [[nodiscard]] analysis::Basis basis_of_event(uint32_t event) const;
  // The outermost operator of the host's thread `track` at the instant, as index into
  // Trace::events; only in traces of a device.
  [[nodiscard]] std::optional<uint32_t> operator_at(uint32_t track, Nanoseconds instant) const;
  [[nodiscard]] std::optional<size_t> step_at(Nanoseconds instant) const;  // into figures.steps

 private:
  void make(const trace::PlannedInputs* planned);  // sets all members but `partition` and `live`
  [[nodiscard]] std::vector<LaneRow> rows_of_events(analysis::Nature nature) const;
  [[nodiscard]] std::vector<LaneRow> rows_of_exposed() const;
  // Where the timeline has the event; nullptr: it is none of compute or copies.
  [[nodiscard]] const analysis::Place* place_of(uint32_t event) const;
  [[nodiscard]] std::map<Kind, std::vector<LaneRow>> rows_of_collectives() const;
  void index_spans();
  std::vector<std::optional<CollectiveSpan>> spans_;  // by collective
};

// A run and everything that views draw. It is built once and then shared; no view changes it.
//
// Threads  const members from any thread.
class RunData {
 public:
  // Analyzes `run`, which takes seconds on large runs; reads no files. `progress` may be null;
  // progress->stop ends the analysis. Errors: those of analyze().
  explicit RunData(trace::Run run, const trace::Progress* progress = nullptr);
  RunData(const RunData&) = delete;
  RunData& operator=(const RunData&) = delete;

  trace::Run run;
  analysis::Analysis analysis;  // with timelines, and of RankDetail the idle time
  std::vector<std::unique_ptr<RankData>> ranks;
  Nanoseconds origin = 0;    // subtracted so that display time 0 is the run's first instant
  Nanoseconds duration = 0;  // in display time
  int64_t event_count = 0;
  // A part of a run whose rest is still being read: lanes, without figures.
  bool preview = false;
  QString unfit;  // why a simulated plan does not fit, so that it has no step; "": it fits

  [[nodiscard]] analysis::Interval shown(const RankData& rank,
                                         const analysis::Interval& own) const {
    return {own.start - rank.shift - origin, own.end - rank.shift - origin};
  }
  [[nodiscard]] analysis::Interval own(const RankData& rank,
                                       const analysis::Interval& shown) const {
    return {shown.start + rank.shift + origin, shown.end + rank.shift + origin};
  }
};

using RunPointer = std::shared_ptr<const RunData>;

// A plan that keeps its owner (a run or a recording) alive.
using PlanPointer = std::shared_ptr<const plan::ResolvedPlan>;
// The run's own plan; nullptr: it has none (a plan recovered from traces is in sim::RecordedRun).
[[nodiscard]] PlanPointer plan_of(const RunPointer& run);

// "(root)" for the root's "".
[[nodiscard]] std::string unit_label(const std::string& fqn);

}  // namespace shardlens::gui
