#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/collective.h"
#include "core/base/dtype.h"
#include "profiler/analysis/events/event_lists.h"
#include "profiler/analysis/events/intervals.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// Which program wrote the ranges of a trace. kProgram: none did; the program gathers its parameters
// itself, and the log is made from its collectives (recover/program_units.h).
enum class FsdpSource : uint8_t { kNone, kShardlens, kFsdp1, kFsdp2, kProgram };

enum class FsdpCall : uint8_t {  // what FSDP did, by its ranges in the trace
  kPreForward,                   // `backward`: an activation checkpoint runs the forward again
  kPostForward,                  // likewise
  kPreBackward,
  kPostBackward,  // the unit's gradients are ready: parameters are freed, gradients reduced
  kUnshard,       // call of the all-gather
  kCopyOut,       // the unit's hook has waited for the all-gather and copies out
  kReduce,        // call of the reduction
  kReduceWait,    // only kProgram: the host waits for a reduction, outside of a hook
};

// Why FSDP gathered a unit's parameters.
enum class UnshardBy : uint8_t { kOwn, kForwardPrefetch, kBackwardPrefetch, kExplicitPrefetch };

// One step of FSDP on the host.
struct FsdpEvent {
  FsdpCall call = FsdpCall::kPreForward;
  UnshardBy unshard_by = UnshardBy::kOwn;
  bool backward = false;        // within backward
  bool after_backward = false;  // FSDP1: prefetched by a post-backward hook
  uint32_t unit = 0;            // index into FsdpLog::units
  uint32_t hook_unit = 0;       // the unit whose hook did it
  uint32_t track = 0;           // thread
  Interval when;                // the range; for FSDP1's unshards and reductions, c10d's call
  Nanoseconds limiter = 0;      // how long the rate limiter blocked the host just before
  uint32_t pass = 0;            // ends with a backward, or is an evaluation
  uint32_t forward = 0;         // number of the root's forward, from 0; one pass may have several
  bool grad = true;             // whether this forward has a backward
};

// A requested prefetch, even if the unit was already gathered.
struct PrefetchRequest {
  uint32_t hook_unit = 0, target = 0;
  bool backward = false, is_explicit = false;
  Nanoseconds time = 0;
  uint32_t pass = 0;
};

struct FsdpUnit {  // a unit, as far as the trace names it
  // "": the root. FSDP1 records no names: "unit 1", "unit 2", … in the order of forward.
  std::string fqn;
  std::optional<uint32_t> parent;  // the enclosing unit; the root has none
};

// What FSDP did, from the ranges that PyTorch's FSDP1 or FSDP2 or Shardlens's engine recorded on
// the host.
//
// [Note: Units of FSDP1] FSDP1's ranges contain no unit names. Its units are the
// FullyShardedDataParallel.forward ranges within one range of the root, in order; a unit that is
// called twice counts as two units. A pre-backward hook is assigned to the unit whose forward ended
// last and that has no pre-backward hook yet. A reduction is assigned to the unit whose backward
// began first and that contains no other unit still to be reduced. If the trace has message sizes,
// they must equal those of the unit's all-gather in forward; otherwise the next unit in that order
// whose size matches is taken. A prefetch gathered the unit whose hook comes next, again by size.
struct FsdpLog {
  FsdpSource source = FsdpSource::kNone;
  std::vector<FsdpUnit> units;
  std::vector<FsdpEvent> events;  // by start
  std::vector<PrefetchRequest> prefetches;
  std::vector<Nanoseconds> root_forwards;  // start of each forward of the root; FSDP1: empty
  std::vector<Interval> limiter_waits;     // FSDP1's rate_limiter ranges
  bool names_units = true;                 // false: see [Note: Units of FSDP1]
  std::vector<trace::Diagnostic> diagnostics;

  [[nodiscard]] uint32_t unit_id(std::string_view fqn);  // added if new; O(1)
  // The unit with this name, the first of several; nullopt: none.
  [[nodiscard]] std::optional<uint32_t> find_unit(std::string_view fqn);
  // The unshard or reduction whose call on `track` contains `instant`; nullptr: none. `near`: a
  // place that is kept from one search to the next, which is fast if the instants are near.
  [[nodiscard]] const FsdpEvent* collective_at(uint32_t track,
                                               Nanoseconds instant,
                                               size_t& near) const;
  [[nodiscard]] const FsdpEvent* collective_at(uint32_t track, Nanoseconds instant) const;
  // Prepares collective_at(); to be called when `events` is complete.
  void index_collectives();

 private:
  struct Call {
    Interval when;
    Nanoseconds latest_end = 0;     // of this call and those before it
    uint32_t track = 0, event = 0;  // index into `events`
  };
  std::vector<Call> calls_;                        // unshards and reductions, by start
  std::unordered_map<std::string, uint32_t> ids_;  // of the first `known_` units
  size_t known_ = 0;
};

[[nodiscard]] FsdpLog read_fsdp_log(const trace::Trace& trace, const EventLists& lists);

// Input and output elements per rank of a c10d call, from "Input Dims" or its arguments.
struct CallSize {
  int64_t in = -1, out = -1;  // -1: not in the trace
  std::optional<DType> dtype;
  std::optional<Bytes> element;  // bytes of one element, also of dtypes that DType has not
  // Size of the larger message of a rank; 0: not in the trace. `ranks`: 0 if not known.
  [[nodiscard]] Bytes bytes(std::optional<CollectiveKind> kind, int64_t ranks) const;
};
// The dtype with the name that Kineto ("Float") or C++ ("float", "c10::BFloat16") uses.
[[nodiscard]] std::optional<DType> recorded_dtype(std::string_view name);
[[nodiscard]] CallSize call_size(const trace::Trace& trace, const trace::Event& call);

// Implemented in fsdp1_log.cpp.
void read_fsdp1(const trace::Trace& trace, FsdpLog& log);

}  // namespace shardlens::analysis
