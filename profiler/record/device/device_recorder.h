#pragma once

#include <functional>
#include <memory>
#include <string>

#include "profiler/record/device/device_tracer.h"
#include "profiler/record/device/owner_tracker.h"
#include "profiler/record/host/forwarding_recorder.h"

namespace shardlens::record {

// Records the device in addition to the host: enables the tracer for recorded steps, flushes its
// records when they end, and marks the work that each thread launches with its unit and phase
// ("External id", owner.h). Without a tracer it only forwards calls.
//
// [Note: Threads that launch] The training thread launches forward, and autograd's thread of the
// device launches backward, but a mark applies only to the thread that sets it. So the current
// owner is one value per process, and each thread sets its mark from it at its next hook, range or
// operator.
//
// Windows   a first step that is not recorded still has the cost of an idle tracer; from the second
//           such step in a row on the tracer is disabled.
// Ownership `next` and `tracer` must outlive the recorder; only one recorder at a time in a
// process.
class DeviceRecorder final : public ForwardingRecorder {
 public:
  DeviceRecorder(SpoolRecorder& next, DeviceTracer* tracer);
  ~DeviceRecorder() override;

  void step_begin(int64_t step) override;
  void step_end() override;
  uint32_t hook(const HookEvent& event) override;
  void range_begin(Range range, UnitId unit) override;
  void range_end() override;

 private:
  void follow();

  SpoolRecorder& spool_;
  DeviceTracer* tracer_;
  OwnerTracker owners_;
  bool enabled_ = false, in_window_ = false;
  int idle_steps_ = 0;
};

}  // namespace shardlens::record
