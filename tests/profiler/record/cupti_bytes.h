#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include <unistd.h>

#include <cupti.h>

// Records as CUPTI makes them.
namespace shardlens::record {

// A buffer as CUPTI delivers it: records one after the other, aligned to 8 bytes.
class Buffer {
 public:
  template <typename T>
  void add(const T& record) {
    const size_t bytes = words_.size() * sizeof(uint64_t);
    words_.resize((bytes + sizeof(T) + 7) / 8);
    std::memcpy(reinterpret_cast<char*>(words_.data()) + bytes, &record, sizeof(T));
  }
  [[nodiscard]] uint8_t* data() { return reinterpret_cast<uint8_t*>(words_.data()); }
  [[nodiscard]] size_t size() const { return words_.size() * sizeof(uint64_t); }

 private:
  std::vector<uint64_t> words_;
};

inline CUpti_ActivityKernel10 kernel_of(
    const char* name, uint32_t correlation, uint32_t stream, uint64_t start, uint64_t end) {
  CUpti_ActivityKernel10 k{};
  k.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  k.name = name;
  k.correlationId = correlation;
  k.streamId = stream;
  k.contextId = 1;
  k.start = start;
  k.end = end;
  k.gridX = 4;
  k.gridY = 2;
  k.gridZ = 1;
  k.blockX = 256;
  k.blockY = k.blockZ = 1;
  k.registersPerThread = 32;
  k.staticSharedMemory = 1000;
  k.dynamicSharedMemory = 24;
  return k;
}

inline CUpti_ActivityAPI call_of(CUpti_CallbackId id,
                                 uint32_t correlation,
                                 uint64_t start,
                                 uint64_t end) {
  CUpti_ActivityAPI call{};
  call.kind = CUPTI_ACTIVITY_KIND_RUNTIME;
  call.cbid = id;
  call.correlationId = correlation;
  call.threadId = static_cast<uint32_t>(::getpid());
  call.start = start;
  call.end = end;
  return call;
}

inline CUpti_ActivityExternalCorrelation external_of(uint32_t correlation, uint64_t id) {
  CUpti_ActivityExternalCorrelation e{};
  e.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
  e.externalKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;
  e.correlationId = correlation;
  e.externalId = id;
  return e;
}

inline constexpr CUpti_CallbackId kLaunch = CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000;

}  // namespace shardlens::record
