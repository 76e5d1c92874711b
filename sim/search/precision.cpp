#include "sim/search/precision.h"

#include <fmt/format.h>

namespace shardlens::sim {
namespace {

std::optional<DType> plan_dtype(std::string_view name) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (plan_name(dtype) == name) {
      return dtype;
    }
  }
  return std::nullopt;
}

}  // namespace

std::string name_of(const Precision& precision) {
  return fmt::format("{}/{}", plan_name(precision.param), plan_name(precision.reduce));
}

std::optional<Precision> parse_precision(std::string_view text) {
  const size_t slash = text.find('/');
  const std::optional<DType> param = plan_dtype(text.substr(0, slash));
  const std::optional<DType> reduce =
      slash == std::string_view::npos ? DType::kF32 : plan_dtype(text.substr(slash + 1));
  return param && reduce ? std::optional(Precision{*param, *reduce}) : std::nullopt;
}

void set_precision(plan::Plan& plan, const std::optional<Precision>& precision) {
  if (precision) {
    plan.mixed_precision.param_dtype = precision->param;
    plan.mixed_precision.reduce_dtype = precision->reduce;
  }
}

}  // namespace shardlens::sim
