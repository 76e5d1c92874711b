#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/units.h"
#include "profiler/record/host/spool_recorder.h"

namespace shardlens::record {

// Records what the device does; created by start_cupti().
//
// Threads  windows, enable(), flush() and finish() from the training thread, or serialised with it;
//          push() and pop() from any thread.
// Errors   does not throw: errors become notes of the recorder.
class DeviceTracer {
 public:
  DeviceTracer() = default;
  virtual ~DeviceTracer() = default;
  DeviceTracer(const DeviceTracer&) = delete;
  DeviceTracer& operator=(const DeviceTracer&) = delete;

  // Work that the host launches between these calls is kept.
  virtual void begin_window() = 0;
  virtual void end_window() = 0;
  // Turns all recording on or off; recording has a cost. Must be on before the first window.
  virtual void enable(bool on) = 0;
  // Delivers finished records; does not wait for the device.
  virtual void flush() = 0;
  // Delivers all records and removes the tracer from the process. Returns how many of Shardlens's
  // NVTX ranges it saw. After a fault, `wait` must be false: the devices may never become idle.
  virtual int64_t finish(bool wait) = 0;

  // Work that the calling thread launches between these calls is marked with `id`.
  virtual void push(uint64_t id) = 0;
  virtual void pop() = 0;
};

struct CuptiOptions {  // of the recording through CUPTI
  // The size is the same for all tracers of a process, because CUPTI may still have buffers of
  // earlier ones.
  static constexpr Bytes kBufferBytes = Bytes{4} << 20;  // about 19 000 kernels
  size_t buffers = 16;        // fixed number; with none free, CUPTI drops and counts records
  bool whole_graphs = false;  // a CUDA graph as one event instead of its kernels
  // Waits until all devices are idle; called before the last flush, so that it has the records of
  // work that is still running. Empty: what is not done then has no times and is left out.
  std::function<void()> synchronize = {};
  const char* driver = "libcuda.so.1";  // the library without which nothing is recorded
};

// Subscribes to CUPTI. The device is recorded after enable(true). Call this before the process's
// first NVTX call, so that ranges of other libraries are seen too (sets NVTX_INJECTION64_PATH
// unless it is already set).
//
// Ownership   `recorder` must outlive the tracer.
// Errors      RuntimeFault with one sentence: no driver, another tool that records the process
//             (with its name), a build without CUPTI. UsageError if a tracer already exists.
[[nodiscard]] std::unique_ptr<DeviceTracer> start_cupti(SpoolRecorder& recorder,
                                                        const CuptiOptions& options = {});

// The error message for a failed cuptiSubscribe: `code`, its name, and the tool that CUPTI names.
[[nodiscard]] std::string subscribe_failure(int code,
                                            std::string_view code_name,
                                            std::string_view other_tool);

}  // namespace shardlens::record
