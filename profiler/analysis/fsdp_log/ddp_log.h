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

// A gradient that autograd completed and DDP's Reducer received.
struct DdpGradient {
  Interval when;       // the Reducer's copy into the bucket, or the AccumulateGrad operator
  int64_t numel = -1;  // -1: not in the trace
  std::optional<DType> dtype;
  uint32_t node = trace::kNoIndex;  // event: the autograd node before, which computed it
  std::string module;               // as named in the trace ("Linear_3"); "": not in the trace
};

// One all-reduce of gradients.
struct DdpBucket {
  uint32_t call = trace::kNoIndex;  // event: c10d's call
  uint32_t track = 0;
  Interval when;                       // time of the call
  int64_t numel = -1;                  // -1: not in the trace
  std::optional<DType> dtype;          // nullopt: not in the trace
  std::vector<DdpGradient> gradients;  // in order of completion; empty: not known
};

// One forward of a DistributedDataParallel module and the backward that followed.
struct DdpPass {
  uint32_t forward_track = 0, backward_track = 0;
  Interval forward;
  Interval backward;            // autograd nodes and the Reducer's work; empty: none ran
  Nanoseconds compute_end = 0;  // end of the last autograd node: the Reducer's waits begin here
  // In order of launch; empty: gradients were not reduced (no_sync).
  std::vector<DdpBucket> buckets;
  std::vector<Interval> copies_in;   // the Reducer's copies of gradients into buckets
  std::vector<Interval> copies_out;  // the Reducer's copies of gradients out of buckets
  bool reduces_used_map = false;  // with find_unused_parameters: reduced the map of used parameters
};

// What PyTorch's DistributedDataParallel did (or Shardlens's engine with replicated units), from
// its ranges and the calls of the Reducer and c10d.
//
// [Note: Buckets of DDP] The Reducer calls an all-reduce within the autograd node (AccumulateGrad)
// that completes a bucket. The bucket's gradients are those since the previous call, if their sizes
// sum to the bucket's size. The sizes do not match if the bucket was completed before another
// bucket that must be reduced first; then the bucket gets no gradients. A call after the last
// gradient, when all gradients have been reduced, reduces the map of used parameters.
struct DdpLog {
  std::vector<DdpPass> passes;  // by start; empty: no DDP in the trace

  // The bucket whose call on `track` contains `instant`, as pass and index; nullopt: none.
  struct Place {
    size_t pass = 0, bucket = 0;
  };
  [[nodiscard]] std::optional<Place> bucket_at(uint32_t track, Nanoseconds instant) const;
  // "bucket 0 (Linear_3, LayerNorm_1)"; without modules if the trace names none.
  [[nodiscard]] std::string name_of(const Place& place) const;
};

// Reads the log. Sizes and modules are found only in a trace read with ReadOptions::keep_args, and
// modules only if it has "nn.Module: …" ranges (with_stack=True).
[[nodiscard]] DdpLog read_ddp_log(const trace::Trace& trace);

// "Sequence number" of an operator or an autograd node; -1: not in the trace.
[[nodiscard]] int64_t sequence_of(const trace::Trace& trace, const trace::Event& event);

// Whether the name is a range of DDP's Reducer: "torch::distributed::reducer::mul_out",
// "torch.distributed.ddp.reducer::copy_bucket_to_grad", …
[[nodiscard]] bool is_reducer_range(std::string_view name);

}  // namespace shardlens::analysis
