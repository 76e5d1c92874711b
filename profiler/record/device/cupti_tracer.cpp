#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>

#include <cupti.h>

#include "core/base/error.h"
#include "profiler/record/device/activity_buffers.h"
#include "profiler/record/device/cuda_devices.h"
#include "profiler/record/device/cupti_records.h"
#include "profiler/record/device/device_tracer.h"
#include "profiler/record/host/clock.h"
#include "profiler/record/host/quiet_thread.h"

namespace shardlens::record {
namespace {

struct Kind {
  CUpti_ActivityKind kind;
  std::string_view name;
};
// GRAPH_TRACE is enabled separately, with CuptiOptions::whole_graphs: it replaces the kernels of a
// graph.
constexpr std::array<Kind, 14> kKinds{{
    {CUPTI_ACTIVITY_KIND_DEVICE, "devices"},
    {CUPTI_ACTIVITY_KIND_CONTEXT, "contexts"},
    {CUPTI_ACTIVITY_KIND_RUNTIME, "runtime calls"},
    {CUPTI_ACTIVITY_KIND_DRIVER, "driver calls"},
    {CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, "external correlations"},
    {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, "kernels"},
    {CUPTI_ACTIVITY_KIND_MEMCPY, "copies"},
    {CUPTI_ACTIVITY_KIND_MEMCPY2, "copies between devices"},
    {CUPTI_ACTIVITY_KIND_MEMSET, "memsets"},
    {CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, "synchronisations"},
    {CUPTI_ACTIVITY_KIND_CUDA_EVENT, "events"},
    {CUPTI_ACTIVITY_KIND_OVERHEAD, "overhead"},
    {CUPTI_ACTIVITY_KIND_MEMORY2, "memory"},
    {CUPTI_ACTIVITY_KIND_MARKER, "NVTX ranges"},
}};

// Calls that PyTorch and the runtime make very often and that launch nothing.
constexpr CUpti_CallbackId kNoisyRuntimeCalls[] = {
    CUPTI_RUNTIME_TRACE_CBID_cudaGetDevice_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaSetDevice_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaGetLastError_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaPeekAtLastError_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaGetDeviceCount_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaDeviceGetAttribute_v5000,
    CUPTI_RUNTIME_TRACE_CBID_cudaFuncGetAttributes_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaPointerGetAttributes_v4000,
    CUPTI_RUNTIME_TRACE_CBID_cudaEventQuery_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaStreamQuery_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaStreamIsCapturing_v10000,
    CUPTI_RUNTIME_TRACE_CBID_cudaStreamGetCaptureInfo_v2_v11030,
    CUPTI_RUNTIME_TRACE_CBID_cudaStreamGetCaptureInfo_v12030,
    CUPTI_RUNTIME_TRACE_CBID_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags_v7000,
};
constexpr CUpti_CallbackId kNoisyDriverCalls[] = {
    CUPTI_DRIVER_TRACE_CBID_cuCtxGetCurrent,
    CUPTI_DRIVER_TRACE_CBID_cuCtxSetCurrent,
    CUPTI_DRIVER_TRACE_CBID_cuCtxGetDevice,
    CUPTI_DRIVER_TRACE_CBID_cuCtxPushCurrent_v2,
    CUPTI_DRIVER_TRACE_CBID_cuCtxPopCurrent_v2,
    CUPTI_DRIVER_TRACE_CBID_cuDeviceGetAttribute,
    CUPTI_DRIVER_TRACE_CBID_cuDevicePrimaryCtxGetState,
    CUPTI_DRIVER_TRACE_CBID_cuFuncGetAttribute,
    CUPTI_DRIVER_TRACE_CBID_cuKernelGetAttribute,
    CUPTI_DRIVER_TRACE_CBID_cuKernelGetFunction,
    CUPTI_DRIVER_TRACE_CBID_cuGetProcAddress,
    CUPTI_DRIVER_TRACE_CBID_cuGetProcAddress_v2,
    CUPTI_DRIVER_TRACE_CBID_cuPointerGetAttribute,
    CUPTI_DRIVER_TRACE_CBID_cuPointerGetAttributes,
    CUPTI_DRIVER_TRACE_CBID_cuEventQuery,
    CUPTI_DRIVER_TRACE_CBID_cuStreamQuery,
    CUPTI_DRIVER_TRACE_CBID_cuStreamIsCapturing,
};

std::string name_of(CUptiResult result) {
  const char* text = nullptr;
  return ::cuptiGetResultString(result, &text) == CUPTI_SUCCESS && text != nullptr
             ? text
             : fmt::format("CUPTI error {}", static_cast<int>(result));
}

// CUPTI's callbacks have no user data and may be called until the process ends, so the buffers are
// never freed. All tracers of the process use them, one after the other.
ActivityBuffers& buffers() {
  static auto* instance = new ActivityBuffers(CuptiOptions::kBufferBytes, 0);
  return *instance;
}
std::atomic<bool> alive{false};

void on_request(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = buffers().take();
  *size = *buffer == nullptr ? 0 : buffers().bytes();
  *max_records = 0;  // as many as fit
}

void on_complete(
    CUcontext context, uint32_t stream, uint8_t* buffer, size_t /*size*/, size_t valid) {
  if (buffer != nullptr) {
    buffers().filled({buffer, valid, context, stream});
  }
}

void on_callback(void* /*data*/,
                 CUpti_CallbackDomain /*domain*/,
                 CUpti_CallbackId /*id*/,
                 const void* /*info*/) {}

// At its first call, NVTX loads the library named by NVTX_INJECTION64_PATH and passes its calls on
// to it.
void offer_nvtx() {
  Dl_info cupti{};
  if (::dladdr(reinterpret_cast<void*>(&::cuptiSubscribe), &cupti) != 0) {
    ::setenv("NVTX_INJECTION64_PATH", cupti.dli_fname, 0);
  }
}

class CuptiTracer final : public DeviceTracer {
 public:
  CuptiTracer(SpoolRecorder& recorder, const CuptiOptions& options)
      : recorder_(recorder), options_(options), parser_(recorder) {
    subscribe();
    offer_nvtx();
    // Registered before any kind is enabled and before PyTorch's profiler could register its own
    // buffers.
    if (const CUptiResult r = ::cuptiActivityRegisterCallbacks(on_request, on_complete);
        r != CUPTI_SUCCESS) {
      ::cuptiUnsubscribe(subscriber_);
      throw RuntimeFault(
          fmt::format("no device records: CUPTI did not accept the buffers ({})", name_of(r)));
    }
    uint8_t zeroed = 1;
    size_t size = sizeof(zeroed);
    complain(
        ::cuptiActivitySetAttribute(CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER, &size, &zeroed),
        "cleared buffers");
    complain(::cuptiSetThreadIdType(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM), "thread ids");
    for_each_cuda_device([this](const CUpti_ActivityDevice5& device) {
      parser_.take(reinterpret_cast<const CUpti_Activity&>(device));
    });
    parser_.keep_only_windows();  // a late buffer may have records of an earlier tracer
    buffers().grow(options_.buffers);
    buffers().open();
    thread_ = thread_without_signals([this] { read(); });
  }
  ~CuptiTracer() override { finish(/*wait=*/false); }

  void enable(bool on) override {
    for (const Kind& kind : kKinds) {
      switch_kind(kind, on);
    }
    if (options_.whole_graphs) {
      switch_kind({CUPTI_ACTIVITY_KIND_GRAPH_TRACE, "graphs"}, on);
    }
    if (!on) {
      flush();
      return;
    }
    // After the kinds, because enabling a kind enables all of its calls.
    for (const CUpti_CallbackId call : kNoisyRuntimeCalls) {
      static_cast<void>(::cuptiActivityEnableRuntimeApi(call, 0));
    }
    for (const CUpti_CallbackId call : kNoisyDriverCalls) {
      static_cast<void>(::cuptiActivityEnableDriverApi(call, 0));
    }
    // No records of queries for unfinished work.
    static_cast<void>(::cuptiActivityEnableAllSyncRecords(0));
  }

  void begin_window() override { parser_.begin_window(now_ns()); }
  void end_window() override { parser_.end_window(now_ns()); }

  void flush() override { flush_all(0); }

  int64_t finish(bool wait) override {
    if (std::exchange(finished_, true)) {
      return own_ranges_;
    }
    if (wait && options_.synchronize) {
      options_.synchronize();
    }
    flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    for (const Kind& kind : kKinds) {
      static_cast<void>(::cuptiActivityDisable(kind.kind));
    }
    static_cast<void>(::cuptiActivityDisable(CUPTI_ACTIVITY_KIND_GRAPH_TRACE));
    buffers().close();
    thread_.join();
    static_cast<void>(::cuptiUnsubscribe(subscriber_));
    parser_.finish();
    own_ranges_ = parser_.own_ranges();
    if (buffers().refused() > 0) {
      recorder_.note(
          fmt::format("no free buffer for device records {} times: all {} of {} MiB were full",
                      buffers().refused(), options_.buffers, CuptiOptions::kBufferBytes >> 20));
    }
    if (buffers().unexpected() > 0) {
      recorder_.note(fmt::format("CUPTI delivered {} buffers that it did not have: ignored",
                                 buffers().unexpected()));
    }
    if (parser_.untimed() > 0) {
      recorder_.note(
          fmt::format("{} device records without times are left out", parser_.untimed()));
    }
    alive = false;
    return own_ranges_;
  }

  void push(uint64_t id) override {
    static_cast<void>(
        ::cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, id));
  }
  void pop() override {
    uint64_t last = 0;
    static_cast<void>(
        ::cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &last));
  }

 private:
  // The subscription also works as a lock, because CUPTI allows only one subscriber at a time.
  void subscribe() {
    // Without a driver CUPTI of CUDA 13.2 calls itself until the stack is full.
    if (::dlopen(options_.driver, RTLD_NOW | RTLD_LOCAL) == nullptr) {
      throw RuntimeFault(
          fmt::format("no device records: there is no {}; is an NVIDIA driver loaded, as "
                      "nvidia-smi shows?",
                      options_.driver));
    }
    std::array<char, CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN * 2> other{};
    CUpti_SubscriberParams params{};
    params.structSize = CUpti_SubscriberParams_STRUCT_SIZE;
    params.subscriberName = "shardlens";
    params.oldSubscriberName = other.data();
    params.oldSubscriberSize = other.size();
    const CUptiResult r = ::cuptiSubscribe_v2(&subscriber_, on_callback, nullptr, &params);
    if (r != CUPTI_SUCCESS) {
      throw RuntimeFault(subscribe_failure(static_cast<int>(r), name_of(r), other.data()));
    }
  }

  void flush_all(uint32_t flags) {
    parser_.begin_flush(now_ns());
    static_cast<void>(::cuptiActivityFlushAll(flags));
    parser_.end_flush(now_ns());
  }

  void switch_kind(const Kind& kind, bool on) {
    if (on) {
      complain(::cuptiActivityEnable(kind.kind), kind.name);
    } else {
      static_cast<void>(::cuptiActivityDisable(kind.kind));
    }
  }

  void complain(CUptiResult r, std::string_view what) {
    if (r != CUPTI_SUCCESS) {
      recorder_.note(fmt::format("CUPTI does not record {}: {}", what, name_of(r)));
    }
  }

  // Runs on a separate thread, because CUPTI's callbacks run within the calls of the launching
  // thread.
  void read() {
    int64_t dropped = 0;
    while (const auto buffer = buffers().next()) {
      const CUptiResult r = parser_.parse(buffer->data, buffer->size);
      complain(r, "the rest of a buffer");
      size_t lost = 0;
      if (::cuptiActivityGetNumDroppedRecords(static_cast<CUcontext>(buffer->context),
                                              buffer->stream, &lost) == CUPTI_SUCCESS &&
          lost > 0) {
        dropped += static_cast<int64_t>(lost);
        recorder_.device_dropped(dropped);
      }
      buffers().give_back(buffer->data);
    }
  }

  SpoolRecorder& recorder_;
  const CuptiOptions options_;
  ActivityParser parser_;  // used by `thread_` while that runs, except for windows
  CUpti_SubscriberHandle subscriber_ = nullptr;
  std::thread thread_;
  bool finished_ = false;
  int64_t own_ranges_ = 0;
};

}  // namespace

std::unique_ptr<DeviceTracer> start_cupti(SpoolRecorder& recorder, const CuptiOptions& options) {
  if (alive.exchange(true)) {
    throw UsageError("start_cupti: another tracer is recording this process; finish it first");
  }
  try {
    return std::make_unique<CuptiTracer>(recorder, options);
  } catch (...) {
    alive = false;
    throw;
  }
}

}  // namespace shardlens::record
