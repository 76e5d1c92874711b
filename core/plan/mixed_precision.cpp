#include "core/plan/mixed_precision.h"

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/json/json_reader.h"

namespace shardlens::plan {
namespace {

using Names = std::vector<std::string>;
using nlohmann::ordered_json;

const Names kFloatDtypes{"fp32", "bf16", "fp16"};
const Names kGatherDtypes{"float8_e4m3fn"};
const Names kMixedPrecisionKeys{"param_dtype",  "reduce_dtype", "output_dtype",
                                "buffer_dtype", "gather_dtype", "cast_forward_inputs"};

ordered_json dtype_json(const std::optional<DType>& dtype) {
  return dtype ? ordered_json(plan_name(*dtype)) : ordered_json();
}

}  // namespace

std::optional<DType> read_float_dtype(const JsonNode& parent, std::string_view key) {
  const auto node = parent.find(key);
  if (!node || node->is_null()) {
    return std::nullopt;
  }
  return parse_dtype(kFloatDtypes[node->one_of(kFloatDtypes)]);
}

MixedPrecision read_mixed_precision(const JsonNode& node) {
  MixedPrecision out;
  if (node.is_null()) {
    return out;
  }
  node.expect_object("an object of dtypes");
  node.allow_only(kMixedPrecisionKeys);
  out.param_dtype = read_float_dtype(node, "param_dtype");
  out.reduce_dtype = read_float_dtype(node, "reduce_dtype");
  out.output_dtype = read_float_dtype(node, "output_dtype");
  out.buffer_dtype = read_float_dtype(node, "buffer_dtype");
  if (const auto gather = node.find("gather_dtype"); gather && !gather->is_null()) {
    (void)gather->one_of(kGatherDtypes);
    out.gathers_float8 = true;
  }
  if (const auto cast = node.find("cast_forward_inputs"); cast && !cast->is_null()) {
    out.cast_forward_inputs = cast->boolean();
  }
  return out;
}

ordered_json mixed_precision_json(const MixedPrecision& mixed) {
  const std::optional<bool>& cast = mixed.cast_forward_inputs;
  ordered_json out{{"param_dtype", dtype_json(mixed.param_dtype)},
                   {"reduce_dtype", dtype_json(mixed.reduce_dtype)},
                   {"output_dtype", dtype_json(mixed.output_dtype)},
                   {"buffer_dtype", dtype_json(mixed.buffer_dtype)}};
  if (mixed.gathers_float8) {
    out["gather_dtype"] = kGatherDtypes.front();
  }
  out["cast_forward_inputs"] = cast ? ordered_json(*cast) : ordered_json();
  return out;
}

}  // namespace shardlens::plan
