#include "profiler/record/device/occupancy.h"

#include <algorithm>
#include <limits>

#include "profiler/trace/spool/spool_format.h"

namespace shardlens::record {

cudaOccDeviceProp occupancy_limits(const CUpti_ActivityDevice5& device) {
  cudaOccDeviceProp limits;
  limits.computeMajor = static_cast<int>(device.computeCapabilityMajor);
  limits.computeMinor = static_cast<int>(device.computeCapabilityMinor);
  limits.maxThreadsPerBlock = static_cast<int>(device.maxThreadsPerBlock);
  limits.maxThreadsPerMultiprocessor =
      static_cast<int>(device.maxWarpsPerMultiprocessor * device.numThreadsPerWarp);
  limits.regsPerBlock = static_cast<int>(device.maxRegistersPerBlock);
  limits.regsPerMultiprocessor = static_cast<int>(device.maxRegistersPerMultiprocessor);
  limits.warpSize = static_cast<int>(device.numThreadsPerWarp);
  limits.sharedMemPerBlock = device.maxSharedMemoryPerBlock;
  limits.sharedMemPerBlockOptin = device.maxSharedMemoryPerMultiprocessor;
  limits.sharedMemPerMultiprocessor = device.maxSharedMemoryPerMultiprocessor;
  limits.numSms = static_cast<int>(std::max<uint32_t>(device.numMultiprocessors, 1));
  return limits;
}

uint8_t occupancy_of(const CUpti_ActivityKernel10& kernel, const cudaOccDeviceProp& limits) {
  const int64_t threads = int64_t{kernel.blockX} * kernel.blockY * kernel.blockZ;
  if (threads <= 0 || threads > limits.maxThreadsPerBlock) {
    return trace::kNoOccupancy;
  }
  cudaOccFuncAttributes function;
  function.maxThreadsPerBlock = limits.maxThreadsPerBlock;
  function.numRegs = kernel.registersPerThread;
  function.sharedSizeBytes = static_cast<size_t>(std::max(kernel.staticSharedMemory, 0));
  function.maxDynamicSharedSizeBytes = std::numeric_limits<int>::max();
  const cudaOccDeviceState state;
  cudaOccResult result;
  if (cudaOccMaxActiveBlocksPerMultiprocessor(
          &result, &limits, &function, &state, static_cast<int>(threads),
          static_cast<size_t>(std::max(kernel.dynamicSharedMemory, 0))) != CUDA_OCC_SUCCESS) {
    return trace::kNoOccupancy;
  }
  const double blocks =
      static_cast<double>(kernel.gridX) * kernel.gridY * kernel.gridZ / limits.numSms;
  const double filled = std::min<double>(result.activeBlocksPerMultiprocessor, blocks) *
                        static_cast<double>(threads) / limits.maxThreadsPerMultiprocessor;
  return static_cast<uint8_t>(std::clamp(filled * 100 + 0.5, 0.0, 100.0));
}

}  // namespace shardlens::record
