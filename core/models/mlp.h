#pragma once

#include <memory>

#include "core/model/model_config.h"
#include "core/models/model.h"

namespace shardlens::models {

// Makes Shardlens' small test model: an embedding, residual blocks of two linear layers with ReLU,
// and a head; `config.family` must be "mlp".
[[nodiscard]] std::shared_ptr<CausalLm> make_mlp(const plan::ModelConfig& config, Init init);

}  // namespace shardlens::models
