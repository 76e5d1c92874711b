#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "profiler/analysis/events/intervals.h"
#include "profiler/trace/model/event_args.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::analysis {

// A gradient that autograd completed and DDP's Reducer took.
struct DdpGradient {
  Interval when;       // the Reducer's copy into the bucket, or the node of autograd that made it
  int64_t numel = -1;  // -1: not in the trace
  std::optional<DType> dtype;
  uint32_t node = trace::kNoIndex;  // event: the node of autograd before it, which made it
  std::string module;               // as the trace names it ("Linear_3"); "" where it does not
};

// One all-reduce of gradients.
struct DdpBucket {
  uint32_t call = trace::kNoIndex;  // event: c10d's call
  uint32_t track = 0;
  Interval when;                       // of the call
  int64_t numel = -1;                  // -1: not in the trace
  std::optional<DType> dtype;          // nullopt: not in the trace
  std::vector<DdpGradient> gradients;  // as they came; empty: the trace does not tell which
};

// One forward of a DistributedDataParallel module and the backward that followed.
struct DdpPass {
  uint32_t forward_track = 0, backward_track = 0;
  Interval forward;
  Interval backward;                 // nodes of autograd and the Reducer's work; empty: none ran
  Nanoseconds compute_end = 0;       // of the last node: the Reducer's waits begin here
  std::vector<DdpBucket> buckets;    // by launch; none: gradients were not reduced (no_sync)
  std::vector<Interval> copies_in;   // the Reducer's copies of gradients into buckets,
  std::vector<Interval> copies_out;  // and back
  bool reduces_used_map = false;     // find_unused_parameters: which parameters were used
};

// What PyTorch's DistributedDataParallel did (or our engine with replicated units), from its
// ranges, the Reducer's and c10d's calls.
//
// [Note: Buckets of DDP] The Reducer calls an all-reduce within the node of autograd
// (AccumulateGrad) that completes a bucket. Its gradients are those that came since the call
// before, if their sizes sum to the bucket's; where a bucket was complete before one that is
// reduced first they do not, and it has none. A call behind the last gradient, when all have been
// reduced, is the map of used parameters.
struct DdpLog {
  std::vector<DdpPass> passes;  // by start; empty: no DDP in the trace

  // The bucket within whose call `instant` of `track` lies, as pass and index; nullopt: in none.
  struct Place {
    size_t pass = 0, bucket = 0;
  };
  [[nodiscard]] std::optional<Place> bucket_at(uint32_t track, Nanoseconds instant) const;
  // "bucket 0 (Linear_3, LayerNorm_1)", without modules where the trace names none.
  [[nodiscard]] std::string name_of(const Place& place) const;
};

// Sizes and modules of a trace read with ReadOptions::keep_args only; modules where it has
// "nn.Module: …" ranges (with_stack=True).
[[nodiscard]] DdpLog read_ddp_log(const trace::Trace& trace);

// "Sequence number" of an operator or a node of autograd; -1: not in the trace.
[[nodiscard]] int64_t sequence_of(const trace::Trace& trace, const trace::Event& event);

// "torch::distributed::reducer::mul_out", "torch.distributed.ddp.reducer::copy_bucket_to_grad", …
[[nodiscard]] bool is_reducer_range(std::string_view name);

}  // namespace shardlens::analysis
