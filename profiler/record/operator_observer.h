#pragma once

#include <cstdint>

#include "profiler/record/spool_recorder.h"

namespace shardlens::record {

// Records every ATen operator and autograd node of the process into a spool, under the id of the
// thread that ran it, from construction to destruction; only while the recorder records. For GEMMs
// (aten::mm, addmm, bmm, baddbmm) the input shapes are kept too. Nested operators are all kept; who
// wants leaves takes those that contain no other.
//
// Ownership  `recorder` must outlive the observer.
// Threads    construct and destroy while no other thread runs operators.
// Errors     UsageError if another observer is alive. Callbacks never throw.
class OperatorObserver {
 public:
  explicit OperatorObserver(SpoolRecorder& recorder);
  ~OperatorObserver();
  OperatorObserver(const OperatorObserver&) = delete;
  OperatorObserver& operator=(const OperatorObserver&) = delete;

 private:
  uint64_t handle_ = 0;
};

}  // namespace shardlens::record
