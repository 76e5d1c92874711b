#pragma once

#include <span>
#include <vector>

#include "sim/cost/cost_model.h"

namespace shardlens::sim {

// Sums of the costs of successive operators. WorkTime::beside counts where there is any work.
struct OperatorSums {
  Nanoseconds issue = 0, alone = 0, beside = 0;
  friend constexpr OperatorSums operator+(OperatorSums sums, const OperatorCost& cost) {
    return {sums.issue + cost.issue, sums.alone + cost.run.alone,
            sums.beside + (cost.run.alone > 0 ? cost.run.beside : 0)};
  }
};

// The sums over the operators before each one, and at the end over all.
[[nodiscard]] inline std::vector<OperatorSums> operator_sums(
    std::span<const OperatorCost> operators) {
  std::vector<OperatorSums> out(operators.size() + 1);
  for (size_t i = 0; i < operators.size(); ++i) {
    out[i + 1] = out[i] + operators[i];
  }
  return out;
}

}  // namespace shardlens::sim
