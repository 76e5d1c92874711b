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

// A row fits into a kernel, which then reads it once; a column does not.
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
});

// 5.5 and 3.9 TB/s on B200 (torchao, prototype/mx_formats/README.md), whose copies reach 0.85 of
// 7.7 TB/s.
constexpr double kAlongRows = 0.85 * 7.7 / 5.5, kAlongColumns = 0.85 * 7.7 / 3.9;
constexpr auto kMxForward = std::to_array<CastKernel>({
    {kX, "triton_to_mxfp8_dim0", 2, kMxBytes, kAlongRows},
    {kW, "triton_to_mxfp8_dim0", 2, kMxBytes, kAlongRows},
});
constexpr auto kMxBackward = std::to_array<CastKernel>({
    {kG, "triton_to_mxfp8_dim0", 2, kMxBytes, kAlongRows},
    {kW, "mxfp8_quantize_dim1", 2, kMxBytes, kAlongColumns},
    {kG, "mxfp8_quantize_dim1", 2, kMxBytes, kAlongColumns},
    {kX, "mxfp8_quantize_dim1", 2, kMxBytes, kAlongColumns},
});

constexpr auto kNvForward = std::to_array<CastKernel>({
    {kX, "triton_rht_amax", 2, 0},
    {kX, "triton_rht_quantize_row_col", 2, 2 * kNvBytes},
    {kW, "aten::max", 2, 0},
    {kW, "triton_weight_quantize_2d", 2, 2 * kNvBytes},
});
constexpr auto kNvBackward = std::to_array<CastKernel>({
    {kG, "triton_rht_amax", 2, 0},
    {kG, "triton_rht_quantize_row_col", 2, 2 * kNvBytes},
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
                      : ProductCasts{kEagerForward, kEagerBackward};
    case MatmulDType::kMxfp8:
      return {kMxForward, kMxBackward, kMxBytes, 32};
    case MatmulDType::kNvfp4:
      break;
  }
  return {kNvForward, kNvBackward, kNvBytes, 128, true};
}

}  // namespace shardlens::plan
