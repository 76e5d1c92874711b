#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/collective.h"
#include "core/base/dtype.h"
#include "profiler/analysis/events/intervals.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// Who wrote the ranges of a trace.
enum class FsdpSource : uint8_t { kNone, kShardlens, kFsdp1, kFsdp2 };

enum class FsdpCall : uint8_t {
  kPreForward,
  kPostForward,
  kPreBackward,
  kPostBackward,  // the unit's gradients are ready: parameters are freed, gradients reduced
  kUnshard,       // the all-gather is called
  kCopyOut,       // the unit's hook has waited for it and takes the parameters out
  kReduce,        // the reduction is called
};

// What made FSDP gather a unit's parameters.
enum class UnshardBy : uint8_t { kOwn, kForwardPrefetch, kBackwardPrefetch, kExplicitPrefetch };

// One thing that FSDP did on the host.
struct FsdpEvent {
  FsdpCall call = FsdpCall::kPreForward;
  UnshardBy unshard_by = UnshardBy::kOwn;
  bool backward = false;        // within backward
  bool after_backward = false;  // FSDP1: prefetched by a post-backward hook
  uint32_t unit = 0;            // index into FsdpLog::units
  uint32_t hook_unit = 0;       // the unit whose hook did it
  uint32_t track = 0;           // thread
  Interval when;                // the range; of FSDP1's unshards and reductions, the call of c10d
  Nanoseconds limiter = 0;      // how long the rate limiter held the host up just before it
  uint32_t pass = 0;            // n-th forward of the root, from 0
};

// A prefetch that was asked for, also where the unit was gathered already.
struct PrefetchRequest {
  uint32_t hook_unit = 0, target = 0;
  bool backward = false, is_explicit = false;
  Nanoseconds time = 0;
  uint32_t pass = 0;
};

struct FsdpUnit {
  std::string
      fqn;  // "" is the root; FSDP1 records no names: "unit 1", "unit 2", … in forward order
  std::optional<uint32_t> parent;  // where the ranges nest; the root has none
};

// What FSDP did, from the ranges that PyTorch's FSDP1, FSDP2 or our engine left on the host.
//
// [Note: Units of FSDP1] FSDP1's ranges carry no names. Its units are the
// FullyShardedDataParallel.forward ranges within one of the root, in order; a unit that is called
// twice counts as two. A pre-backward hook belongs to the unit whose forward ended last and that
// has none yet, a reduction to the unit whose backward began first and that has none within it left
// to reduce, both only if the message sizes (where they are in the trace) are those of the unit's
// forward all-gather; else to the first in that order whose size fits.
struct FsdpLog {
  FsdpSource source = FsdpSource::kNone;
  std::vector<FsdpUnit> units;
  std::vector<FsdpEvent> events;  // by start
  std::vector<PrefetchRequest> prefetches;
  std::vector<Interval> limiter_waits;  // FSDP1's rate_limiter ranges
  bool names_units = true;              // false: see [Note: Units of FSDP1]
  std::vector<trace::Diagnostic> diagnostics;

  [[nodiscard]] uint32_t unit_id(std::string_view fqn);  // added if new
  // The unshard or reduction within whose call `instant` of `track` lies.
  [[nodiscard]] const FsdpEvent* collective_at(uint32_t track, Nanoseconds instant) const;
};

[[nodiscard]] FsdpLog read_fsdp_log(const trace::Trace& trace);

// Elements that a call of c10d took and gave, per rank, from "Input Dims" or its arguments.
struct CallSize {
  int64_t in = -1, out = -1;  // -1: not in the trace
  std::optional<DType> dtype;
  // The larger message of each rank; 0: not in the trace.
  [[nodiscard]] Bytes bytes(std::optional<CollectiveKind> kind, int64_t ranks) const;
};
// As Kineto ("Float") or C++ ("float", "c10::BFloat16") name it.
[[nodiscard]] std::optional<DType> recorded_dtype(std::string_view name);
[[nodiscard]] CallSize call_size(const trace::Trace& trace, const trace::Event& call);

// fsdp1_log.cpp
void read_fsdp1(const trace::Trace& trace, FsdpLog& log);

}  // namespace shardlens::analysis
