#include "sim/cost/gemm_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace shardlens::sim {
namespace {

struct Tile {
  int64_t m, n;
};
// Shapes of cuBLAS' usual kernels.
constexpr std::array<Tile, 6> kTiles{
    {{128, 256}, {256, 128}, {128, 128}, {128, 64}, {64, 128}, {64, 64}}};
constexpr double kLargestTile = 128.0 * 256.0;
constexpr std::array<int64_t, 4> kSplits{1, 2, 4, 8};
constexpr int64_t kLeastSplit = 128;  // smallest part of k

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

double peak_tflops(const GpuSpec& gpu, DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 ? gpu.half_tflops : gpu.fp32_tflops;
}

double tflops_of(const GpuSpec& gpu, plan::MatmulDType dtype) {
  switch (dtype) {
    case plan::MatmulDType::kFp8Tensorwise:
    case plan::MatmulDType::kFp8Rowwise:
      return gpu.fp8_tflops;
    case plan::MatmulDType::kMxfp8:
    case plan::MatmulDType::kMxfp8CublasRceil:
      return gpu.mxfp8_tflops;
    case plan::MatmulDType::kNvfp4:
      break;
  }
  return gpu.nvfp4_tflops;
}

double gemm_us(
    const GpuSpec& gpu, DType dtype, int64_t batch, int64_t m, int64_t n, int64_t k, int64_t sms) {
  const auto number = static_cast<double>(size_of(dtype));
  return gemm_us(gpu, {peak_tflops(gpu, dtype), gpu.gemm_efficiency, number, number}, batch, m, n,
                 k, sms);
}

double gemm_us(const GpuSpec& gpu,
               const ProductRate& product,
               int64_t batch,
               int64_t m,
               int64_t n,
               int64_t k,
               int64_t sms) {
  // 1 TFLOP/s is 1e6 operations per microsecond, 1 GB/s 1e3 bytes.
  const double per_sm = product.tflops * 1e6 / static_cast<double>(gpu.sms);
  const double memory = gpu.memory_gbps * 1e3;
  const auto output = static_cast<double>(batch) * static_cast<double>(m) * static_cast<double>(n);
  double best = std::numeric_limits<double>::max();
  for (const Tile& tile : kTiles) {
    const auto area = static_cast<double>(tile.m * tile.n);
    const double rate =
        per_sm * product.efficiency * std::pow(area / kLargestTile, gpu.gemm_tile_exponent);
    const int64_t tiles = batch * ceil_div(m, tile.m) * ceil_div(n, tile.n);
    for (const int64_t split : kSplits) {
      if (split > 1 && k / split < kLeastSplit) {
        break;
      }
      const auto waves = static_cast<double>(ceil_div(tiles * split, sms));
      const double of_tile = 2 * area * static_cast<double>(ceil_div(k, split)) / rate;
      const double partial =
          split == 1 ? 0 : 2 * output * static_cast<double>(split * size_of(DType::kF32)) / memory;
      best = std::min(best, waves * (of_tile + gpu.gemm_wave_us) + partial);
    }
  }
  const double moved = static_cast<double>(batch) *
                       ((static_cast<double>(m) * static_cast<double>(k) +
                         static_cast<double>(k) * static_cast<double>(n)) *
                            product.input_bytes +
                        static_cast<double>(m) * static_cast<double>(n) * product.output_bytes);
  return gpu.gemm_start_us + std::max(best, moved / memory);
}

}  // namespace shardlens::sim
