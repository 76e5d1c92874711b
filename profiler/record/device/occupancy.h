#pragma once

#include <cstdint>

#include <cuda_occupancy.h>
#include <cupti.h>

namespace shardlens::record {

[[nodiscard]] cudaOccDeviceProp occupancy_limits(const CUpti_ActivityDevice5& device);

// Percentage of a multiprocessor's threads that the kernel's blocks occupy when distributed evenly,
// estimated with CUDA's occupancy calculator as in Kineto; trace::kNoOccupancy if the calculator
// fails.
[[nodiscard]] uint8_t occupancy_of(const CUpti_ActivityKernel10& kernel,
                                   const cudaOccDeviceProp& limits);

}  // namespace shardlens::record
