#pragma once

#include <cstdint>

#include "core/base/dtype.h"
#include "core/workload/software.h"
#include "sim/hardware/hardware_spec.h"

namespace shardlens::sim {

// Microseconds of a batched matrix product [m,k]·[k,n] on `sms` streaming multiprocessors.
//
// [Note: Waves] The output is divided into tiles, one per SM at a time. The tiles of one wave run
// concurrently, so time grows by whole waves. The largest tile reaches `gemm_efficiency` of its
// SM's share of the peak; smaller tiles reach less, by their area to the power of
// `gemm_tile_exponent`. Each wave adds `gemm_wave_us` and the product `gemm_start_us`. If there are
// few tiles, k may be split, which adds reading and writing the partial sums. The fastest tiling is
// used, but the product takes at least the time to move its matrices.
//
// Source  NVIDIA, "Matrix Multiplication Background User's Guide" (tile and wave quantization);
//         constants from the spec.
[[nodiscard]] double gemm_us(
    const GpuSpec& gpu, DType dtype, int64_t batch, int64_t m, int64_t n, int64_t k, int64_t sms);

// The rate of a product, and the bytes of a number of its inputs and of its result.
struct ProductRate {
  double tflops = 0, efficiency = 0, input_bytes = 0, output_bytes = 0;
};
// The same of a product with its own rate, and the share of it that the largest tile reaches.
[[nodiscard]] double gemm_us(const GpuSpec& gpu,
                             const ProductRate& product,
                             int64_t batch,
                             int64_t m,
                             int64_t n,
                             int64_t k,
                             int64_t sms);

// The vendor's rate of dense products in `dtype`, TFLOP/s; 0: the GPU has none.
[[nodiscard]] double tflops_of(const GpuSpec& gpu, plan::MatmulDType dtype);

// The dtype's matrix rate, TFLOP/s.
[[nodiscard]] double peak_tflops(const GpuSpec& gpu, DType dtype);

}  // namespace shardlens::sim
