#pragma once

#include <memory>

#include "core/model/model_config.h"
#include "core/models/model.h"

namespace shardlens::models {

// Makes a GPT2LMHeadModel; `config.family` must be "gpt2".
[[nodiscard]] std::shared_ptr<CausalLm> make_gpt2(const plan::ModelConfig& config, Init init);

}  // namespace shardlens::models
