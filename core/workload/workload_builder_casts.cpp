#include <cmath>
#include <utility>

#include "core/workload/product_casts.h"
#include "core/workload/workload_builder.h"

namespace shardlens::plan {

// As torchtitan converts layers: those of blocks except routers, so that the head, whose name its
// filter has, stays as it is; and of these, as torchao does, those whose sizes its kernels take.
void WorkloadBuilder::cast_products(const Linear& shape,
                                    Operator& op,
                                    std::vector<Operator>& backward) {
  const std::optional<MatmulDType> dtype = out_.software.matmul_dtype;
  if (!dtype || open_blocks_ == 0 || shape.routes || size_of(op.dtype) != size_of(DType::kBF16)) {
    return;
  }
  const ProductCasts casts = product_casts(*dtype, compiles());
  if (shape.in % casts.divisor != 0 || shape.out % casts.divisor != 0) {
    return;
  }
  const auto sized = [&](Bytes numbers, double bytes) {
    return std::llround(static_cast<double>(numbers) * bytes);
  };
  const auto cast = [&](const CastKernel& kernel) {
    Operator out = make(OperatorKind::kElementwise, kernel.name);
    const int64_t numbers = kernel.of == CastOf::kInput    ? rows_ * shape.in
                            : kernel.of == CastOf::kWeight ? shape.in * shape.out
                                                           : rows_ * shape.out;
    out.flops = numbers;
    // All as read: what it writes lives as the product's scratch, not as what is handed on.
    out.read = sized(numbers, kernel.read + kernel.written);
    return out;
  };
  // Compiled code casts an input of several products once.
  const bool shared = compiles() && compiled_.of_norm && !shape.keeps_input;
  for (const CastKernel& kernel : casts.forward) {
    if (!shared || kernel.of != CastOf::kInput) {
      Operator out = cast(kernel);
      const Bytes input = out.read;
      forward(std::move(out), input, {});
    }
  }
  const auto convert = [&](Operator& product) {
    product.matmul_dtype = dtype;
    product.read = sized(product.m * product.k + product.k * product.n, casts.bytes);
    product.scratch += product.read;
  };
  convert(op);
  if (casts.saves_casts && op.saved > 0) {
    op.saved = sized(rows_ * shape.in + shape.in * shape.out, casts.bytes);
  }
  for (Operator& each : backward) {
    if (each.kind == OperatorKind::kGemm) {
      convert(each);
    }
  }
  std::vector<Operator> before;
  for (const CastKernel& kernel : casts.backward) {
    if (!backward.empty() && (!shared || kernel.of != CastOf::kInput)) {
      before.push_back(cast(kernel));
      before.back().takes = kTakesGradient;
    }
  }
  backward.insert(backward.begin(), before.begin(), before.end());
}

}  // namespace shardlens::plan
