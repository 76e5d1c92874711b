#pragma once

#include <memory>

#include "core/models/model.h"
#include "core/plan/model_config.h"

namespace shardlens::models {

// Makes a GPT2LMHeadModel; `config.family` must be "gpt2".
[[nodiscard]] std::shared_ptr<CausalLm> make_gpt2(const plan::ModelConfig& config, Init init);

}  // namespace shardlens::models
