#pragma once

#include <optional>

#include <c10/core/ScalarType.h>

#include "core/base/dtype.h"
#include "core/base/error.h"

namespace shardlens::module {

[[nodiscard]] inline at::ScalarType to_scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return at::kFloat;
    case DType::kBF16:
      return at::kBFloat16;
    case DType::kF16:
      return at::kHalf;
    case DType::kF64:
      return at::kDouble;
    case DType::kI64:
      return at::kLong;
    case DType::kI32:
      return at::kInt;
    case DType::kI16:
      return at::kShort;
    case DType::kI8:
      return at::kChar;
    case DType::kU8:
      return at::kByte;
    case DType::kBool:
      return at::kBool;
  }
  throw RuntimeFault("internal error: no scalar type for a dtype");
}

// Nullopt for dtypes in which parameters cannot be trained: integers, complex numbers, float8.
[[nodiscard]] inline std::optional<DType> trainable_dtype(at::ScalarType type) {
  return at::isFloatingType(type) ? parse_dtype(c10::toString(type)) : std::nullopt;
}

}  // namespace shardlens::module
