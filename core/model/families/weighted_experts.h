#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/model/model_config.h"
#include "core/workload/workload_builder.h"

namespace shardlens::plan {

// The router's scores of one row for each expert.
void expert_scores(WorkloadBuilder& build, int64_t experts);

// Copies the rows of the tokens to the places of their experts: `copies` features of the experts'
// rows, `token` of the tokens' for each of these.
void copy_expert_rows(WorkloadBuilder& build, int64_t copies, double token);

// The operators that transformers runs after its experts: the copies of a token's row times the
// experts' weights, in the tokens' order, added up.
//
// Shapes  `copies`: elements of a row's copies; `token`: a row of the result per copy; `wide`: the
//         weights are fp32 when they multiply.
void weighted_expert_sum(WorkloadBuilder& build, int64_t copies, double token, bool wide);

// The same two of the engine, each in one operator.
void copy_rows_fused(WorkloadBuilder& build, int64_t copies, int64_t hidden);
void weighted_sum_fused(WorkloadBuilder& build, int64_t copies, int64_t hidden);

// All experts' product with `weight`, [experts, in, out] without its bias. `rows`: as in
// WorkloadBuilder::Grouped.
void expert_product(WorkloadBuilder& build,
                    const ModelConfig::Experts& experts,
                    std::string_view weight,
                    int64_t in,
                    int64_t out,
                    bool bias,
                    std::span<const int64_t> rows = {});

// Experts whose gate multiplies by the experts' weights in the same kernel, as Megatron-Core's:
// [Note: Tokens sent once]. `rows`: as in WorkloadBuilder::Grouped.
void weighted_products(WorkloadBuilder& build,
                       const ModelConfig::Experts& experts,
                       int64_t hidden,
                       bool bias,
                       std::span<const int64_t> rows);

}  // namespace shardlens::plan
