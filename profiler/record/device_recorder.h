#pragma once

#include <functional>
#include <memory>
#include <string>

#include "profiler/record/device_tracer.h"
#include "profiler/record/forwarding_recorder.h"
#include "profiler/record/owner_tracker.h"

namespace shardlens::record {

// Records the device beside the host: turns the tracer on for recorded steps, takes its records in
// at their ends, and marks what each thread launches with the unit and phase that it is for
// ("External id", trace/owner.h). Without a tracer it only passes on.
//
// [Note: Threads that launch] Forward is launched by the thread that trains, backward by autograd's
// thread of the device, and the mark is a thread's own. So whom the host works for is one value of
// the process, and each thread takes it over at its next hook, range or operator.
//
// Windows   steps that are not recorded cost what an idle tracer costs; from the second on it is
//           off.
// Ownership `next` and `tracer` must outlive it; one at a time in a process.
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
