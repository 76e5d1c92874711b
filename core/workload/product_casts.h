#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/workload/software.h"

namespace shardlens::plan {

// The casts of a linear layer: of x or its gradient [rows, in], of W or its gradient [in, out], or
// of the gradient of its result [rows, out].
enum class CastOf : uint8_t { kInput, kWeight, kGradient };

// One kernel of a cast; bytes for each number of the tensor that is cast.
struct CastKernel {
  CastOf of = CastOf::kInput;
  std::string_view name;
  double read = 0, written = 0;
  double pace = 1;  // its time over that of copying so many bytes
};

// How torchao 0.18 computes a linear layer's three products in few bits.
struct ProductCasts {
  // Besides the products. Those on results of a product are also listed in `backward`, and take
  // their time before it.
  std::span<const CastKernel> forward, backward;
  double bytes = 1;          // of a number with its part of the scales
  int64_t divisor = 16;      // of the numbers of inputs and outputs; others are not converted
  bool saves_casts = false;  // for backward, in place of the input: those of input and weight
};

// `compiled`: by torch.compile, which fuses the pointwise kernels of a cast, and casts a gradient
// once for both of its uses. `gathered`: the weight comes in 8 bits from its all-gather
// (MixedPrecision::gathers_float8); only for kFp8Tensorwise.
// Source  torchao 0.18: float8/float8_linear.py (matmul_with_hp_or_float8_args), float8_utils.py;
//         prototype/moe_training/mxfp8_linear.py and nvfp4_training/nvfp4_linear.py, whose casts
//         are kernels of their own.
[[nodiscard]] ProductCasts product_casts(MatmulDType dtype, bool compiled, bool gathered = false);

}  // namespace shardlens::plan
