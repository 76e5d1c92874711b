#include "profiler/record/device/cuda_devices.h"

#include <array>
#include <cstdint>

#include <dlfcn.h>

#include <cuda.h>

namespace shardlens::record {
namespace {

// The driver's functions. It is not linked, because most machines have none.
class Driver {
 public:
  explicit Driver(const char* library) : handle_(::dlopen(library, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ != nullptr) {
      find(init_, "cuInit");
      find(count_, "cuDeviceGetCount");
      find(get_, "cuDeviceGet");
      find(name_, "cuDeviceGetName");
      find(memory_, "cuDeviceTotalMem_v2");
      find(attribute_, "cuDeviceGetAttribute");
    }
  }
  // The library stays loaded: CUDA uses it until the process ends.

  [[nodiscard]] int count() const {
    int count = 0;
    const bool usable = complete_ && handle_ != nullptr && init_(0) == CUDA_SUCCESS &&
                        count_(&count) == CUDA_SUCCESS;
    return usable ? count : 0;
  }

  bool read(int index, CUpti_ActivityDevice5& out, std::array<char, 256>& name) {
    CUdevice device = 0;
    size_t memory = 0;
    failed_ = get_(&device, index) != CUDA_SUCCESS ||
              name_(name.data(), static_cast<int>(name.size()), device) != CUDA_SUCCESS ||
              memory_(&memory, device) != CUDA_SUCCESS;
    const auto of = [&](CUdevice_attribute which) {
      int value = 0;
      failed_ = failed_ || attribute_(&value, which, device) != CUDA_SUCCESS;
      return static_cast<uint32_t>(value);
    };
    out = {};
    out.kind = CUPTI_ACTIVITY_KIND_DEVICE;
    out.id = static_cast<uint32_t>(index);
    out.name = name.data();
    out.globalMemorySize = memory;
    out.computeCapabilityMajor = of(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    out.computeCapabilityMinor = of(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    out.numMultiprocessors = of(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    out.numThreadsPerWarp = of(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
    out.maxThreadsPerBlock = of(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    const uint32_t threads = of(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
    out.maxWarpsPerMultiprocessor =
        out.numThreadsPerWarp == 0 ? 0 : threads / out.numThreadsPerWarp;
    out.maxBlocksPerMultiprocessor = of(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
    out.maxRegistersPerBlock = of(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
    out.maxRegistersPerMultiprocessor = of(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
    out.maxSharedMemoryPerBlock = of(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
    out.maxSharedMemoryPerMultiprocessor =
        of(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    return !failed_;
  }

 private:
  template <typename Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(::dlsym(handle_, name));  // NOLINT: what dlsym returns
    complete_ = complete_ && function != nullptr;
  }

  void* handle_ = nullptr;
  bool complete_ = true, failed_ = false;
  decltype(::cuInit)* init_ = nullptr;
  decltype(::cuDeviceGetCount)* count_ = nullptr;
  decltype(::cuDeviceGet)* get_ = nullptr;
  decltype(::cuDeviceGetName)* name_ = nullptr;
  decltype(::cuDeviceTotalMem)* memory_ = nullptr;
  decltype(::cuDeviceGetAttribute)* attribute_ = nullptr;
};

}  // namespace

void for_each_cuda_device(const std::function<void(const CUpti_ActivityDevice5&)>& visit,
                          const char* library) {
  Driver driver(library);
  const int count = driver.count();
  CUpti_ActivityDevice5 device;
  std::array<char, 256> name{};
  for (int index = 0; index < count && driver.read(index, device, name); ++index) {
    visit(device);
  }
}

}  // namespace shardlens::record
