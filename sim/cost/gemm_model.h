#pragma once

#include <cstdint>

#include "core/base/dtype.h"
#include "sim/hardware/hardware_spec.h"

namespace shardlens::sim {

// Microseconds of a batched matrix product [m,k]·[k,n] on `sms` streaming multiprocessors.
//
// [Note: Waves] A product is cut into tiles of the output, one per SM at a time; the tiles of one
// wave run together, so time grows by whole waves. A tile reaches `gemm_efficiency` of its SM's
// share of the peak, smaller tiles less, by their area to the power of `gemm_tile_exponent`; each
// wave costs `gemm_wave_us` and the product `gemm_start_us`. Where tiles are few, k may be split,
// which costs reading and writing the partial sums. Of the tilings the fastest counts, and memory
// bounds it.
//
// Source  NVIDIA, "Matrix Multiplication Background User's Guide" (tile and wave quantization);
//         constants as the spec says.
[[nodiscard]] double gemm_us(
    const GpuSpec& gpu, DType dtype, int64_t batch, int64_t m, int64_t n, int64_t k, int64_t sms);

// The dtype's matrix rate, TFLOP/s.
[[nodiscard]] double peak_tflops(const GpuSpec& gpu, DType dtype);

}  // namespace shardlens::sim
