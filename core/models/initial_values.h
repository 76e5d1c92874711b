#pragma once

#include <cstdint>
#include <span>

#include "core/model/model_config.h"
#include "core/tree/module_tree.h"

namespace shardlens::models {

// Writes the initial values of elements [offset, offset + out.size()) of a parameter: norm weights
// 1 (0 where the norm adds 1), biases and the embedding of the padding token 0, all others
// normal(0, initializer_range), for GPT-2's c_proj divided by sqrt(2 · layers). Element i of
// parameter p depends only on (seed, p, i) (splitmix64 and Box-Muller), so each rank computes only
// its slice, and every world size starts from the same model. `index`: position in
// ModuleTree::parameters. Source  transformers PreTrainedModel._init_weights,
// GPT2PreTrainedModel._init_weights.
void initial_values(const plan::ModelConfig& config,
                    const plan::Parameter& parameter,
                    uint32_t index,
                    uint64_t seed,
                    int64_t offset,
                    std::span<float> out);

}  // namespace shardlens::models
