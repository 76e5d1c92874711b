#pragma once

#include <cstdint>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "core/base/collective.h"
#include "core/base/units.h"
#include "core/schedule/action.h"
#include "profiler/analysis/events/intervals.h"
#include "profiler/analysis/fsdp_log/ddp_log.h"
#include "profiler/analysis/fsdp_log/fsdp_log.h"
#include "profiler/analysis/fsdp_log/sections.h"
#include "profiler/trace/bytes/progress.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

struct TimelineOptions {
  std::optional<std::regex>
      communication;  // further kernels (CPU traces: events) that communicate, by name
  // Ends the work with a RuntimeFault where it is to stop; may be null.
  const trace::Progress* progress = nullptr;

  void check() const {
    if (progress != nullptr) {
      progress->check();
    }
  }
};

// When a unit's parameters are gathered for, or what is done with its gradients.
enum class UnitPart : uint8_t {
  kAllGatherForward,
  kAllGatherBackward,
  kReduceScatter,
  kAllReduce,
  kOther
};
inline constexpr int kUnitPartCount = 5;
[[nodiscard]] std::string_view name_of(UnitPart part);  // "all_gather_forward", …

// One collective as it ran on its communicator.
struct Collective {
  uint32_t event = 0;  // index into Trace::events
  std::optional<CollectiveKind> kind;
  UnitPart part = UnitPart::kOther;
  std::optional<uint32_t> unit;      // index into Timeline::units
  Section section = Section::kNone;  // without a unit: loss, clip or optimizer, if it is theirs
  Interval when;
  std::optional<Nanoseconds> issued;     // when the host called
  std::optional<Nanoseconds> needed_at;  // when what consumes it began to wait for it
  Bytes bytes = 0;                       // the larger of its two messages; 0: not in the trace
  int64_t ranks = 0;                     // of its group; 0: not in the trace
  uint32_t args = trace::kNoIndex;       // index into Trace::collectives
  uint32_t issuer = trace::kNoIndex;  // event of the host that issued it: launch, or call of c10d
  std::optional<schedule::Cause> issued_by;
  uint32_t track = 0;
  uint32_t action = 0;           // seq; 0: not known
  Nanoseconds limiter_wait = 0;  // how long the limiter held it up
  // Of all ranks that took part; nullopt where it was not matched across ranks (matching.h).
  std::optional<Nanoseconds> last_start;  // when the last of them began, on this rank's clock
  uint32_t last_rank = trace::kNoIndex;   // that one: position in the run,
  uint32_t last_index = trace::kNoIndex;  // and index into its timeline's collectives
  std::optional<Nanoseconds> transfer;    // the shortest duration: from then on data moves
};

struct Step {
  int64_t number = 0;
  Interval window;
  Interval host;  // ProfilerStep#k: when the host issued it; on the CPU the window itself
};

enum class Nature : uint8_t { kCompute, kCommunication, kCopy };

// A kernel, memcpy or memset; in host traces, a leaf operator.
struct DeviceEvent {
  uint32_t event = 0;                 // index into Trace::events
  uint32_t launch = trace::kNoIndex;  // the same, of the call that launched it; a leaf: itself
  Nature nature = Nature::kCompute;
};

// A trace, sorted into what computes, communicates and copies; docs/metrics.md defines each.
struct Timeline {
  bool device = false;  // the trace has device events; otherwise host operators stand for compute
  IntervalSet span;     // what the rank's figures cover
  IntervalSet compute, communication, copy;
  std::vector<Collective> collectives;  // by start
  std::vector<Step> steps;              // by start
  std::vector<std::string> units;       // FQNs: the trace's, then what only ranges name
  std::vector<IntervalSet> busy;        // by track: all that counts above, for figures per stream
  std::vector<DeviceEvent> device_events;  // by start
  std::vector<DeviceEvent> host_events;    // leaf operators of host traces
  FsdpLog fsdp;                            // what FSDP did, where the trace has its ranges
  DdpLog ddp;                              // what DDP did, in traces without those
  Sections sections;                       // whose the host's time was
  std::vector<trace::Diagnostic> diagnostics;
};

// Whom a device event or leaf operator was launched for: what our recorder pushed with the launch,
// else whose the host's time was then. Its launch must be in the trace.
[[nodiscard]] Owner owner_of(const trace::Trace& trace,
                             const Timeline& timeline,
                             const DeviceEvent& event);

[[nodiscard]] Timeline make_timeline(const trace::Trace& trace,
                                     const TimelineOptions& options = {});

}  // namespace shardlens::analysis
