#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/TensorBody.h>
#include <torch/nn/module.h>

#include "core/model/model_config.h"
#include "core/models/layers.h"
#include "core/tree/module_tree.h"

namespace shardlens::models {

// A causal language model with the parameter names, shapes, order and arithmetic of its Hugging
// Face class (transformers 5.23, attn_implementation="sdpa"). The weight of a tied head is the
// embedding's tensor, so parameters() lists it twice; Python lists it once. Computes in the dtype
// of its parameters; norms compute in fp32 internally.
class CausalLm : public torch::nn::Module {
 public:
  // tokens int64 [B, T] → logits [B, T, V]; runs the forward hooks of the root.
  // Errors: InputError if T exceeds the model's positions.
  virtual at::Tensor logits(const at::Tensor& tokens) = 0;
};

// `seed` determines the values with Init::kRandom; they are the same on every rank and come from
// initial_values(). Parameters are on `device`.
//
// Errors  InputError with the JSON pointer for settings that the models do not support (dropout,
//         activation, head counts that do not divide).
[[nodiscard]] std::shared_ptr<CausalLm> make_model(const plan::ModelConfig& config,
                                                   Init init,
                                                   uint64_t seed = 0,
                                                   c10::Device device = c10::kCPU);

}  // namespace shardlens::models
