#include "core/fsdp/unit/reduction.h"

#include <cmath>

#include "core/plan/resolved_plan.h"

namespace shardlens::fsdp {
namespace {

// Splits `factor` into a power of two near its square root and the remaining factor.
Reduction in_two_halves(double factor) {
  double before = 1;
  while (std::fmod(factor, before) == 0 && factor / before > before) {
    before *= 2;
  }
  return {false, false, before, factor / before};
}

}  // namespace

Reduction reduction_of(const plan::ResolvedPlan& plan, UnitId unit, double share) {
  const auto ranks = static_cast<double>(plan.world_size);
  if (plan.plan.dialect == plan::Dialect::kFsdp1) {
    return in_two_halves(ranks * share);
  }
  const auto& chosen = plan.units[unit].gradient_divide_factor;
  const double factor = chosen.value_or(ranks) * share;
  // PyTorch divides at once only in these dtypes.
  if (const DType dtype = plan.reduce_dtype(unit); dtype != DType::kF32 && dtype != DType::kBF16) {
    return in_two_halves(factor);
  }
  if (!chosen && share == 1) {
    return {};
  }
  // Like NCCL's PREMUL_SUM, or an average if that is the same.
  const bool average = plan.shards() > 1 && factor == static_cast<double>(plan.shards());
  return {average, false, average ? 1 : factor, 1};
}

}  // namespace shardlens::fsdp
