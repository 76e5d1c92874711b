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
// behind, padded to groups of rows) and two times back. The weighted sum is a product in fp32.
void torchtitan_experts(WorkloadBuilder& build,
                        const ModelConfig::Experts& experts,
                        int64_t hidden);

}  // namespace shardlens::plan
