#pragma once

#include <memory>

#include "core/models/model.h"

namespace shardlens::models {

// Our small model for tests: an embedding, residual blocks of two linears with ReLU, a head;
// `config.family` is "mlp".
[[nodiscard]] std::shared_ptr<CausalLm> make_mlp(const plan::ModelConfig& config, Init init);

}  // namespace shardlens::models
