#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/collective.h"
#include "core/base/units.h"

namespace shardlens::dist {

// The kernels behind an emulated collective: `ctas` blocks read and write what NCCL's would on this
// rank, spread over `duration`, and end then.
//
// Semantics  all-gather: `in` [bytes] into each of the `ranks` slices of `out`; reduce-scatter:
//            slice `rank` of `in` [ranks · bytes] into `out`, reading all; the others leave `out`.
// Bound      a block gives up waiting after twice the duration and a second, whatever the clock
//            says, so that a device never hangs on it.
struct DelayLaunch {
  CollectiveKind kind = CollectiveKind::kAllGather;
  const void* in = nullptr;
  void* out = nullptr;
  Bytes bytes = 0;  // of one rank's slice
  int rank = 0, ranks = 1;
  int ctas = 1;
  Nanoseconds duration = 0;
  void* stream = nullptr;  // cudaStream_t
};

// CUDA C++ of all of them.
[[nodiscard]] std::string_view delay_source();
// Compiles it for a compute capability such as 90; needs no device.
// Errors: RuntimeFault with the compiler's messages.
[[nodiscard]] std::vector<char> compile_delay_kernels(int compute_capability);
// On the current device; compiled at its first launch. Errors: RuntimeFault. Threads: any.
void launch_delay(const DelayLaunch& launch);

}  // namespace shardlens::dist
