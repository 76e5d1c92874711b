#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/collective.h"
#include "core/base/units.h"
#include "core/schedule/action.h"
#include "profiler/analysis/events/intervals.h"
#include "profiler/analysis/fsdp_log/ddp_log.h"
#include "profiler/analysis/fsdp_log/host_log.h"
#include "profiler/trace/bytes/progress.h"
#include "profiler/trace/model/trace.h"

namespace re2 {
class RE2;
}
namespace shardlens::trace {
struct PlannedInputs;
}

namespace shardlens::analysis {

struct TimelineOptions {  // how events are read
  // Names of additional kernels (CPU traces: events) that communicate; may be null. RE2, because a
  // search takes time proportional to the name whatever the expression.
  std::shared_ptr<const re2::RE2> communication;
  // The device whose events are analyzed, if kernels of a trace ran on several.
  std::optional<int64_t> device;
  // The plan of the run, by whose order collectives of CUDA graphs are found; may be null.
  const trace::PlannedInputs* planned = nullptr;
  // Can stop the analysis with a RuntimeFault; may be null.
  const trace::Progress* progress = nullptr;

  void check() const {
    if (progress != nullptr) {
      progress->check();
    }
  }
};

// A row of a unit's figures: its gathers of parameters, divided by phase, its two reductions of
// gradients, and collectives of every other Purpose.
enum class UnitPart : uint8_t {
  kAllGatherForward,
  kAllGatherBackward,
  kReduceScatter,
  kAllReduce,
  kOther
};
inline constexpr int kUnitPartCount = 5;
[[nodiscard]] std::string_view name_of(UnitPart part);  // "all_gather_forward", …

// How the owner of a device event or of a collective was found.
//
// [Note: Captured work] All kernels of a CUDA graph have one launch, so the host's ranges say
// nothing about them. Their owner is, the first that applies: the module that an annotation of the
// kernel names; the owner of the event in the same place of an uncaptured step of the same trace,
// or the unit of the collective in the same place of the plan's order. Where more than one place
// is possible, the owner is ambiguous. The order of the parameters gives the units of collectives
// that a program issues itself, in the same way.
enum class Basis : uint8_t { kNone, kRange, kAnnotation, kOrder, kAmbiguous };
inline constexpr int kBasisCount = 5;
[[nodiscard]] std::string_view name_of(Basis basis);  // "none", "range", "annotation", …

// One collective as it ran on its communicator.
struct Collective {
  uint32_t event = 0;  // index into Trace::events
  std::optional<CollectiveKind> kind;
  Purpose purpose = Purpose::kOther;
  UnitPart part = UnitPart::kOther;  // follows from the purpose, and from the phase of a gather
  std::optional<uint32_t> unit;      // index into Timeline::units
  // Index into Timeline::modules: the module within the unit, of collectives that a program issues
  // for its own parameters.
  std::optional<uint32_t> module;
  Section section = Section::kNone;  // if it has no unit: loss, clip, optimizer or none
  Interval when;
  std::optional<Nanoseconds> issued;     // when the host called
  std::optional<Nanoseconds> needed_at;  // when its consumer began to wait for it
  Bytes bytes = 0;                       // the larger of its two messages; 0: not in the trace
  int64_t ranks = 0;                     // size of its group; 0: not in the trace
  uint32_t args = trace::kNoIndex;       // index into Trace::collectives
  // Its group in the trace's list, if its arguments do not describe the group, or name none and
  // only this one fits; kNoIndex: not known.
  uint32_t listed_group = trace::kNoIndex;
  uint32_t issuer = trace::kNoIndex;  // host event that issued it: launch, or c10d call
  uint32_t wait = trace::kNoIndex;    // host event that waits for it, where a program's is known
  std::optional<schedule::Cause> issued_by;
  uint32_t track = 0;
  uint32_t action = 0;           // seq; 0: not known
  Basis basis = Basis::kNone;    // of unit and section; kNone: a range, if they are known
  Nanoseconds limiter_wait = 0;  // how long the rate limiter delayed it
  // Over all participating ranks; nullopt if not matched across ranks (collective_matching.h).
  std::optional<Nanoseconds> last_start;  // when the last rank began, on this rank's clock
  uint32_t last_rank = trace::kNoIndex;   // the last rank: position in the run,
  uint32_t last_index = trace::kNoIndex;  // and index into its timeline's collectives
  std::optional<Nanoseconds> transfer;    // the shortest duration of all ranks
};

struct Step {  // a training step, by its ProfilerStep events
  int64_t number = 0;
  Interval window;
  Interval host;  // ProfilerStep#k on the host; on the CPU the same as `window`
};

enum class Nature : uint8_t { kCompute, kCommunication, kCopy };

// Properties that many device events share; they refer to them by an index.
struct Place {
  uint32_t track = 0;   // of the event
  uint32_t thread = 0;  // the launch's track; without a launch, the event's
  // The external id that Shardlens's recorder attached to the launch, otherwise the owner of the
  // host's time at the launch; none without a launch. Of captured work: see Basis.
  Owner owner;
  Basis basis = Basis::kNone;  // kNone: a range, if the owner is known
};

// A kernel, memcpy or memset; in host traces, a leaf operator. Its times are those of the events,
// repeated so that a pass over all device events reads memory in order.
struct DeviceEvent {
  Interval when;
  Nanoseconds launched = 0;  // when the call that launched it began; without one, when.start
  uint32_t event = 0;        // index into Trace::events
  // Index of the call that launched it; for a leaf operator: itself.
  uint32_t launch = trace::kNoIndex;
  uint32_t place = 0;  // index into Timeline::places
  Nature nature = Nature::kCompute;
  // An event before it has the same launch: both are of a CUDA graph.
  bool repeats_launch = false;
};
static_assert(sizeof(DeviceEvent) <= 40);

// A trace, divided into compute, communication and copies; docs/reference/metrics.md defines each.
struct Timeline : HostLog {
  // The work ran on a device; otherwise host operators are the compute.
  bool device = false;
  // The evidence that the trace lacks the device's kernels ("NCCL ran (nccl:all_reduce)"). Then
  // there are no device events, and the span is empty: the host's events do not show when they ran.
  std::string missing_kernels;
  IntervalSet span;  // the time that the rank's figures cover
  IntervalSet compute, communication, copy;
  std::vector<Collective> collectives;     // by start
  std::vector<Step> steps;                 // by start
  std::vector<std::string> units;          // FQNs: the trace's, then those that only ranges name
  std::vector<std::string> modules;        // FQNs, of Collective::module
  std::vector<DeviceEvent> device_events;  // by start
  std::vector<DeviceEvent> host_events;    // leaf operators of host traces
  std::vector<Place> places;               // of device and host events
  DdpLog ddp;                              // what DDP did, in traces without FSDP ranges
  // Whether device events were launched by CUDA graphs or have annotations.
  bool captured = false;
  // Whether units of collectives follow from the order of the parameters; see
  // [Note: Order of parameters] in parameter_order.h.
  bool rewritten = false;
  // Captured events and the events of an uncaptured step that they repeat, as indices into
  // Trace::events; by the first.
  std::vector<std::pair<uint32_t, uint32_t>> repeats;
  std::vector<trace::Diagnostic> diagnostics;

  [[nodiscard]] const Place& place(const DeviceEvent& event) const { return places[event.place]; }
};

[[nodiscard]] Timeline make_timeline(const trace::Trace& trace,
                                     const TimelineOptions& options = {});

}  // namespace shardlens::analysis
