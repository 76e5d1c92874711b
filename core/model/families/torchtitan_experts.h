#pragma once

#include <cstdint>
#include <span>

#include "core/model/model_config.h"
#include "core/workload/workload_builder.h"

namespace shardlens::plan {

// The operators of torchtitan's layers of experts: models/moe/moe.py, version 0.2.2, without expert
// parallelism.

// The router's scores of one row for each expert, in fp32.
void torchtitan_scores(WorkloadBuilder& build, int64_t experts);

// Three grouped products. `rows`: as in WorkloadBuilder::Grouped.
void torchtitan_products(WorkloadBuilder& build,
                         const ModelConfig::Experts& experts,
                         int64_t hidden,
                         std::span<const int64_t> rows);

// The rows are copied three times on their way to the experts (by expert, with a row of zeros
// behind, padded to groups of rows) and once back.
void torchtitan_experts(WorkloadBuilder& build,
                        const ModelConfig::Experts& experts,
                        int64_t hidden);
// After the shared experts: a copy into the order of the tokens, and a product in fp32.
void torchtitan_expert_sum(WorkloadBuilder& build,
                           const ModelConfig::Experts& experts,
                           int64_t hidden);

// Casts the weighted sum of a token's results, `token` of `features` numbers, from fp32: the last
// operator of the layer, at which `scratch` of them are in other tensors (also the result of the
// shared experts, which is not added yet). It saves
// nothing, so that its backward comes before a checkpoint runs the layer again.
void cast_expert_sum(WorkloadBuilder& build, int64_t features, double token, double scratch);

}  // namespace shardlens::plan
