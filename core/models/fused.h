#pragma once

#include <algorithm>
#include <cstdint>

#include <ATen/core/TensorBody.h>

// When and how finely the element-wise parts run as the loops of kernels.h.
namespace shardlens::models {

// Whether a tensor is one that the loops can read.
inline bool runs_fused(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat && tensor.is_cpu();
}

// Smallest number of elements per thread, as in aten's element-wise kernels.
inline constexpr int64_t kFusedGrain = 32768;

inline int64_t fused_rows_per_task(int64_t features) {
  return std::max<int64_t>(1, kFusedGrain / std::max<int64_t>(1, features));
}

}  // namespace shardlens::models
