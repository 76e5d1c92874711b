#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/units.h"
#include "profiler/record/spool_recorder.h"

namespace shardlens::record {

// What records the device; made by start_cupti().
//
// Threads  windows, enable(), flush() and finish() from the thread that trains or what is
//          serialised with it; push() and pop() from any.
// Errors   none is thrown: what goes wrong becomes a note of the recorder.
class DeviceTracer {
 public:
  DeviceTracer() = default;
  virtual ~DeviceTracer() = default;
  DeviceTracer(const DeviceTracer&) = delete;
  DeviceTracer& operator=(const DeviceTracer&) = delete;

  // What the host launches between these is kept.
  virtual void begin_window() = 0;
  virtual void end_window() = 0;
  // Whether anything is recorded at all, which costs; on before the first window.
  virtual void enable(bool on) = 0;
  // Lets finished records come in; does not wait for the device.
  virtual void flush() = 0;
  // Takes in everything, and the tracer out of the process. Returns how many NVTX ranges of ours it
  // saw.
  virtual int64_t finish() = 0;

  // What the calling thread launches between these is marked with `id`.
  virtual void push(uint64_t id) = 0;
  virtual void pop() = 0;
};

struct CuptiOptions {
  Bytes buffer_bytes = Bytes{4} << 20;  // about 19 000 kernels
  size_t buffers = 16;        // all there will be: without a free one CUPTI drops, and counts
  bool whole_graphs = false;  // a CUDA graph as one event instead of its kernels
};

// Subscribes to CUPTI; the device is recorded from enable(true) on. Do so before the process's
// first call of NVTX, so that ranges of other libraries are seen too (NVTX_INJECTION64_PATH is set
// unless another tool has).
//
// Ownership   `recorder` must outlive it.
// Errors      RuntimeFault with one sentence: no driver, another tool that records the process (by
//             name), a build without CUPTI. UsageError if a tracer is alive already.
[[nodiscard]] std::unique_ptr<DeviceTracer> start_cupti(SpoolRecorder& recorder,
                                                        const CuptiOptions& options = {});

// The sentence for what cuptiSubscribe returned: `code`, its name, and the tool that CUPTI names.
[[nodiscard]] std::string subscribe_failure(int code,
                                            std::string_view code_name,
                                            std::string_view other_tool);

}  // namespace shardlens::record
