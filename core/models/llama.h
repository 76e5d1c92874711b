#pragma once

#include <memory>

#include "core/models/model.h"

namespace shardlens::models {

// Makes a LlamaForCausalLM; `config.family` must be "llama".
[[nodiscard]] std::shared_ptr<CausalLm> make_llama(const plan::ModelConfig& config, Init init);

}  // namespace shardlens::models
