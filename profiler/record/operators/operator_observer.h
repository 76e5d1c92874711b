#pragma once

#include <cstdint>

#include "profiler/record/host/spool_recorder.h"

namespace shardlens::record {

// Records into a spool the ATen operators and autograd nodes of the thread that creates the
// observer, and of the threads on which autograd runs its backward. Records from construction to
// destruction, but only while the recorder records. Communication threads are left out: their work
// is recorded as collectives.
//
// Shapes     recorded only for GEMMs (aten::mm, addmm, bmm, baddbmm) in the first recorded step:
//            the shapes are the same in every step and cost too much to record each time.
// Nesting    nested operators are kept, except the helpers that products, views, allocations and
//            fused operators call (see [Note: Closed operators]); analysis counts them as their
//            callers' time. A node of autograd is "autograd::engine::evaluate_function: <node>".
// Ownership  `recorder` must outlive the observer.
// Threads    construct, destroy and train on the same thread.
// Errors     UsageError if another observer is alive. Callbacks never throw.
class OperatorObserver {
 public:
  explicit OperatorObserver(SpoolRecorder& recorder);
  ~OperatorObserver();
  OperatorObserver(const OperatorObserver&) = delete;
  OperatorObserver& operator=(const OperatorObserver&) = delete;

 private:
  SpoolRecorder& recorder_;
  uint64_t handle_ = 0;
};

// Waits until all of LibTorch's CUDA devices are idle. Does nothing unless the program has loaded
// LibTorch's CUDA library.
void wait_for_devices();

}  // namespace shardlens::record
