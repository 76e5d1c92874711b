#pragma once

#include <cstdint>
#include <span>

#include "core/model/model_config.h"
#include "core/workload/workload_builder.h"

namespace shardlens::plan {

// The operators of torchtitan's layers of experts without expert parallelism: models/moe/moe.py of
// version 0.2.2; models/common/moe.py and token_dispatcher.py of 0.3.

// The router's scores of one row for each expert, in fp32. In 0.3 its product is in fp32, too.
void torchtitan_scores(WorkloadBuilder& build, int64_t experts);

// Three grouped products; `biased`: two with biases and a clamped gate, those of gpt_oss. `rows`:
// as in WorkloadBuilder::Grouped.
void torchtitan_products(WorkloadBuilder& build,
                         const ModelConfig::Experts& experts,
                         int64_t hidden,
                         bool biased,
                         std::span<const int64_t> rows);

// The rows are copied three times on their way to the experts (by expert, with a row of zeros
// behind, padded to groups of rows) and once back. In 0.3 once, by expert; the results are weighed.
void torchtitan_experts(WorkloadBuilder& build,
                        const ModelConfig::Experts& experts,
                        int64_t hidden,
                        bool biased);
// After the shared experts: a copy into the order of the tokens, and for each token a product in
// fp32 with its experts' weights. `own`: part of the rows that this rank has results of; the others
// are zeros.
void torchtitan_expert_sum(WorkloadBuilder& build,
                           const ModelConfig::Experts& experts,
                           int64_t hidden,
                           double own);

// Version 0.3, before the shared experts: the results are weighed in fp32 and added up in the
// places of their tokens, without atomic operations. `features` of `rows` rows, `token`: numbers of
// the tokens for each of theirs.
void torchtitan_weighted_rows(WorkloadBuilder& build, int64_t features, double token);

}  // namespace shardlens::plan
