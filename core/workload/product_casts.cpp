#include "core/workload/product_casts.h"

#include <algorithm>
#include <array>

namespace shardlens::plan {
namespace {

constexpr CastOf kX = CastOf::kInput, kW = CastOf::kWeight, kG = CastOf::kGradient;
constexpr double kMxBytes = 1 + 1.0 / 32, kNvBytes = 0.5 + 1.0 / 16;

template <size_t A, size_t B>
constexpr std::array<CastKernel, A + B> joined(const std::array<CastKernel, A>& a,
                                               const std::array<CastKernel, B>& b) {
  std::array<CastKernel, A + B> out;
  std::copy(a.begin(), a.end(), out.begin());
  std::copy(b.begin(), b.end(), out.begin() + A);
  return out;
}

// max(abs(x)), (x in fp32) · scale, clamp, the cast: an operator each.
constexpr std::array<CastKernel, 6> eager_cast(CastOf of) {
  return {{{of, "aten::abs", 2, 2},
           {of, "aten::max", 2, 0},
           {of, "aten::_to_copy", 2, 4},
           {of, "aten::mul", 4, 4},
           {of, "aten::clamp", 4, 4},
           {of, "aten::_to_copy", 4, 1}}};
}
// _scaled_mm takes its second matrix by columns, and the first by rows.
constexpr auto kTransposed = std::to_array<CastKernel>({
    {kW, "aten::clone", 1, 1},
    {kG, "aten::clone", 1, 1},
    {kX, "aten::clone", 1, 1},
});
constexpr auto kEagerForward = joined(eager_cast(kX), eager_cast(kW));
constexpr auto kEagerBackward =
    joined(joined(joined(eager_cast(kG), eager_cast(kW)), joined(eager_cast(kG), eager_cast(kX))),
           kTransposed);

constexpr auto kEagerGatheredForward = eager_cast(kX);
constexpr auto kEagerGatheredBackward =
    joined(joined(joined(eager_cast(kG), eager_cast(kG)), eager_cast(kX)), kTransposed);

// The scale of a tensor needs all of it, so that two kernels read it. Scales of input and weight
// are kept for backward.
constexpr std::array<CastKernel, 2> tensor_cast(CastOf of) {
  return {{{of, "triton_red_fused_amax", 2, 0}, {of, "triton_poi_fused_to_float8", 2, 1}}};
}
constexpr auto kTensorForward = joined(tensor_cast(kX), tensor_cast(kW));
constexpr auto kTensorBackward = std::to_array<CastKernel>({
    {kG, "triton_red_fused_amax", 2, 0},
    {kG, "triton_poi_fused_to_float8", 2, 2},  // by rows and by columns
    {kW, "triton_poi_fused_to_float8", 2, 1},
    {kX, "triton_poi_fused_to_float8", 2, 1},
});

constexpr auto kTensorGatheredForward = tensor_cast(kX);
constexpr auto kTensorGatheredBackward = std::to_array<CastKernel>({
    {kG, "triton_red_fused_amax", 2, 0},
    {kG, "triton_poi_fused_to_float8", 2, 2},
    {kW, "triton_poi_fused_clone", 1, 1},  // by columns
    {kX, "triton_poi_fused_to_float8", 2, 1},
});

// PyTorch's kernel with scales for rows is slow where it adds up in fp32, as torchao does in
// backward (float8_ops.py, addmm_float8_unwrapped). So cuBLAS multiplies without scales, and the
// result is multiplied with those of its rows and columns.
constexpr std::array<CastKernel, 2> scaled_result(CastOf of) {
  return {{{of, "aten::mul", 0, 4}, {of, "aten::mul_", 6, 2}}};
}
constexpr auto kEagerRowBackward =
    joined(kEagerBackward, joined(scaled_result(kX), scaled_result(kW)));

// A row fits into a kernel, which then reads it once; a column does not. The gradient of the input
// is scaled in the kernel that reads it next; that of the weight has a kernel of its own.
constexpr auto kRowForward = std::to_array<CastKernel>({
    {kX, "triton_per_fused_to_float8", 2, 1},
    {kW, "triton_per_fused_to_float8", 2, 1},
});
constexpr auto kRowBackward = std::to_array<CastKernel>({
    {kG, "triton_per_fused_to_float8", 2, 1},
    {kG, "triton_red_fused_amax", 2, 0},
    {kG, "triton_poi_fused_to_float8", 2, 1},
    {kW, "triton_red_fused_amax", 2, 0},
    {kW, "triton_poi_fused_to_float8", 2, 1},
    {kX, "triton_red_fused_amax", 2, 0},
    {kX, "triton_poi_fused_to_float8", 2, 1},
    {kW, "triton_poi_fused_mul", 2, 2},
});

// 5.5 and 3.9 TB/s on B200 (torchao, prototype/mx_formats/README.md), whose copies reach 0.85 of
// 7.7 TB/s.
constexpr double kAlongRows = 0.85 * 7.7 / 5.5, kAlongColumns = 0.85 * 7.7 / 3.9;
// The time of a cast along rows by inductor's kernel with scales rounded up, which it computes
// without the instruction for it, over rounded down: 220.10 and 125.92 us (the same page at
// 4446ad9, 16384 x 16384, B200). The CUDA kernel along columns is as fast with both.
constexpr double kRoundedUp = 220.10 / 125.92;
constexpr std::array<CastKernel, 2> mx_forward(double pace) {
  return {{{kX, "triton_to_mxfp8_dim0", 2, kMxBytes, pace},
           {kW, "triton_to_mxfp8_dim0", 2, kMxBytes, pace}}};
}
constexpr std::array<CastKernel, 4> mx_backward(double pace) {
  return {{{kG, "triton_to_mxfp8_dim0", 2, kMxBytes, pace},
           {kW, "mxfp8_quantize_dim1", 2, kMxBytes, kAlongColumns},
           {kG, "mxfp8_quantize_dim1", 2, kMxBytes, kAlongColumns},
           {kX, "mxfp8_quantize_dim1", 2, kMxBytes, kAlongColumns}}};
}
constexpr auto kMxForward = mx_forward(kAlongRows);
constexpr auto kMxBackward = mx_backward(kAlongRows);
constexpr auto kMxRceilForward = mx_forward(kRoundedUp * kAlongRows);
constexpr auto kMxRceilBackward = mx_backward(kRoundedUp * kAlongRows);

// How much longer than copying, 0.85 of 8.0 TB/s on GB200. By rows and by columns, gradients with
// stochastic rounding, weights in blocks of 16 x 16.
// Source  torchao, benchmarks/prototype/nvfp4_training/README.md at 36027d8, GB200: what its Triton
//         kernels take more with the larger of its two largest sizes.
constexpr double kOfMaximum = 0.85 * 8.0 / 3.8, kOfNearest = 0.85 * 8.0 / 1.72,
                 kOfStochastic = 0.85 * 8.0 / 1.22, kOfBlocks = 0.85 * 8.0 / 0.79;
constexpr auto kNvForward = std::to_array<CastKernel>({
    {kX, "triton_rht_amax", 2, 0, kOfMaximum},
    {kX, "triton_rht_quantize_row_col", 2, 2 * kNvBytes, kOfNearest},
    {kW, "aten::max", 2, 0},
    {kW, "aten::zeros", 0, 1},  // what the next kernel writes
    {kW, "triton_weight_quantize_2d", 2, 2 * kNvBytes, kOfBlocks},
});
constexpr auto kNvBackward = std::to_array<CastKernel>({
    {kG, "triton_rht_amax", 2, 0, kOfMaximum},
    {kG, "triton_rht_quantize_row_col", 2, 2 * kNvBytes, kOfStochastic},
});

}  // namespace

ProductCasts product_casts(MatmulDType dtype, bool compiled, bool gathered) {
  switch (dtype) {
    case MatmulDType::kFp8Tensorwise:
      if (gathered) {
        return compiled ? ProductCasts{kTensorGatheredForward, kTensorGatheredBackward}
                        : ProductCasts{kEagerGatheredForward, kEagerGatheredBackward};
      }
      return compiled ? ProductCasts{kTensorForward, kTensorBackward}
                      : ProductCasts{kEagerForward, kEagerBackward};
    case MatmulDType::kFp8Rowwise:
      return compiled ? ProductCasts{kRowForward, kRowBackward}
                      : ProductCasts{kEagerForward, kEagerRowBackward};
    case MatmulDType::kMxfp8:
      return {kMxForward, kMxBackward, kMxBytes, 32};
    case MatmulDType::kMxfp8CublasRceil:
      return {kMxRceilForward, kMxRceilBackward, kMxBytes, 32};
    case MatmulDType::kNvfp4:
      break;
  }
  return {kNvForward, kNvBackward, kNvBytes, 128, true};
}

}  // namespace shardlens::plan
