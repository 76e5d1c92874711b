#pragma once

#include <cstdint>

#include <cuda_occupancy.h>
#include <cupti.h>

namespace shardlens::record {

[[nodiscard]] cudaOccDeviceProp occupancy_limits(const CUpti_ActivityDevice5& device);

// Percent of a multiprocessor's threads that an even spread of the kernel's blocks fills, as Kineto
// estimates it with CUDA's own calculator; trace::kNoOccupancy where that has no answer.
[[nodiscard]] uint8_t occupancy_of(const CUpti_ActivityKernel10& kernel,
                                   const cudaOccDeviceProp& limits);

}  // namespace shardlens::record
