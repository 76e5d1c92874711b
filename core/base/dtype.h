#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/base/units.h"

namespace shardlens {

enum class DType : uint8_t { kF32, kBF16, kF16, kF64, kI64, kI32, kI16, kI8, kU8, kBool };

[[nodiscard]] Bytes size_of(DType dtype);
[[nodiscard]] bool is_floating(DType dtype);
// "fp32", "bf16", "fp16", …: used in plan files and on the command line.
[[nodiscard]] std::string_view plan_name(DType dtype);
// "F32", "BF16", "F16", …: used in safetensors headers.
[[nodiscard]] std::string_view safetensors_name(DType dtype);
// "Float", "BFloat16", "Half", …: values of Kineto's `dtype` argument (c10::toString of the scalar
// type).
[[nodiscard]] std::string_view kineto_name(DType dtype);
// Accepts any of the three spellings above and PyTorch's "float32", "bfloat16", "float16", …;
// nullopt for any other name.
[[nodiscard]] std::optional<DType> parse_dtype(std::string_view name);

}  // namespace shardlens
