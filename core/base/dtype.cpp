#include "core/base/dtype.h"

#include <array>

namespace shardlens {
namespace {

struct DTypeRow {
  DType dtype;
  Bytes size;
  std::string_view plan, safetensors, kineto, torch;
};

constexpr std::array<DTypeRow, 10> kDTypeRows{{
    {DType::kF32, 4, "fp32", "F32", "Float", "float32"},
    {DType::kBF16, 2, "bf16", "BF16", "BFloat16", "bfloat16"},
    {DType::kF16, 2, "fp16", "F16", "Half", "float16"},
    {DType::kF64, 8, "fp64", "F64", "Double", "float64"},
    {DType::kI64, 8, "i64", "I64", "Long", "int64"},
    {DType::kI32, 4, "i32", "I32", "Int", "int32"},
    {DType::kI16, 2, "i16", "I16", "Short", "int16"},
    {DType::kI8, 1, "i8", "I8", "Char", "int8"},
    {DType::kU8, 1, "u8", "U8", "Byte", "uint8"},
    {DType::kBool, 1, "bool", "BOOL", "Bool", "bool"},
}};

const DTypeRow& row(DType dtype) {
  return kDTypeRows[static_cast<size_t>(dtype)];
}

}  // namespace

Bytes size_of(DType dtype) {
  return row(dtype).size;
}
bool is_floating(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 ||
         dtype == DType::kF64;
}
std::string_view plan_name(DType dtype) {
  return row(dtype).plan;
}
std::string_view safetensors_name(DType dtype) {
  return row(dtype).safetensors;
}
std::string_view kineto_name(DType dtype) {
  return row(dtype).kineto;
}

std::optional<DType> parse_dtype(std::string_view name) {
  for (const DTypeRow& r : kDTypeRows) {
    if (name == r.plan || name == r.safetensors || name == r.kineto || name == r.torch) {
      return r.dtype;
    }
  }
  return std::nullopt;
}

}  // namespace shardlens
