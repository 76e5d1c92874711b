#pragma once

#include <optional>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "core/base/dtype.h"

namespace shardlens::plan {

class JsonNode;

struct MixedPrecision {  // dtypes of a unit; nullopt: as the parameters are
  std::optional<DType> param_dtype, reduce_dtype, output_dtype, buffer_dtype;
  std::optional<bool> cast_forward_inputs;
  // Key "gather_dtype": all-gathers carry weights of linear layers as float8_e4m3fn, in which these
  // multiply, as torchao's float8 training does with enable_fsdp_float8_all_gather.
  bool gathers_float8 = false;
  friend bool operator==(const MixedPrecision&, const MixedPrecision&) = default;
};

// The value of `key` of `parent`: fp32, bf16 or fp16; nullopt: absent or null.
[[nodiscard]] std::optional<DType> read_float_dtype(const JsonNode& parent, std::string_view key);

// The value of the key "mixed_precision" of a plan or of an entry of its units; null: the default.
// Errors: InputError with JSON pointer.
[[nodiscard]] MixedPrecision read_mixed_precision(const JsonNode& node);
[[nodiscard]] nlohmann::ordered_json mixed_precision_json(const MixedPrecision& mixed);

}  // namespace shardlens::plan
