#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/collective.h"
#include "core/base/units.h"

namespace shardlens::dist {

// Launch of a kernel that emulates a collective: `ctas` blocks read and write the bytes that NCCL's
// kernel would on this rank, spread over `duration`.
//
// Semantics  all-gather: copies `in` [bytes] into each of the `ranks` slices of `out`;
//            reduce-scatter: reads all of `in` [ranks · bytes] and copies slice `rank` into `out`;
//            the other collectives do not change the values in `out`.
// Bound      a block stops waiting after at most twice the duration plus one second, counted in
//            clock cycles, so that the device does not hang if the global timer does not advance.
struct DelayLaunch {
  CollectiveKind kind = CollectiveKind::kAllGather;
  const void* in = nullptr;
  void* out = nullptr;
  Bytes bytes = 0;  // size of one rank's slice
  int rank = 0, ranks = 1;
  int ctas = 1;
  Nanoseconds duration = 0;
  void* stream = nullptr;  // cudaStream_t
};

// The CUDA C++ source of all kernels.
[[nodiscard]] std::string_view delay_source();
// Compiles delay_source() for a compute capability such as 90; needs no device.
// Errors: RuntimeFault with the compiler's messages.
[[nodiscard]] std::vector<char> compile_delay_kernels(int compute_capability);
// Launches on the current device; the first launch on a device compiles the kernels.
// Errors: RuntimeFault. Threads: any.
void launch_delay(const DelayLaunch& launch);

}  // namespace shardlens::dist
