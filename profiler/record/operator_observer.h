#pragma once

#include <cstdint>

#include "profiler/record/spool_recorder.h"

namespace shardlens::record {

// Records the ATen operators and autograd nodes of the thread that makes it, and of threads that
// autograd runs its backward on, into a spool; from construction to destruction, only while the
// recorder records. Communication threads are left out: what they do is the collective's own
// record.
//
// Shapes     in the first recorded step, GEMMs (aten::mm, addmm, bmm, baddbmm) carry their inputs'
//            shapes, which are the same in every step and cost too much to take in each.
// Nesting    all operators are kept; who wants leaves takes those that contain no other.
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

}  // namespace shardlens::record
