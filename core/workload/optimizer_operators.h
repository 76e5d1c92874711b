#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/plan/unit_sizes.h"
#include "core/workload/workload.h"

namespace shardlens::plan {

// Whether gradients that stay allocated are set to zero after a step, so that the next one adds to
// them. Those of a traced step's graph take the places of those before.
// Source  torchtitan 0.3.0, trainer.py (zero_grad); experiments/graph_trainer/trainer.py at commit
//         756213e.
[[nodiscard]] bool zeroes_gradients(Program program, const Software& software);

// The optimizer's operators over all shards of a rank. Their unit is the root. `saved` of one with
// foreach: tensors that it makes, which live until the last operator. `sizes`: unit_sizes(plan).
[[nodiscard]] std::vector<Operator> optimizer_operators(const ResolvedPlan& plan,
                                                        std::span<const UnitSize> sizes,
                                                        const StepSettings& settings);
// The all-reduce of the scales of weights that are gathered as float8, a number in the weights'
// dtype for each; nothing without such weights.
[[nodiscard]] std::optional<Communication> float8_scales(const ResolvedPlan& plan);
// The operators of the units with optimizer_in_backward, which optimizer_operators() leaves out:
// what the action kStep of Operator::unit runs. `sizes` as before.
[[nodiscard]] std::vector<Operator> operators_in_backward(const ResolvedPlan& plan,
                                                          std::span<const UnitSize> sizes,
                                                          const StepSettings& settings);

}  // namespace shardlens::plan
