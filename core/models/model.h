#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/TensorBody.h>
#include <torch/nn/module.h>

#include "core/models/layers.h"
#include "core/plan/module_tree.h"

namespace shardlens::models {

// A causal language model with the parameter names, shapes, order and arithmetic of its Hugging
// Face class (transformers 5.23, attn_implementation="sdpa"). A tied head holds the embedding's
// weight itself, so parameters() lists that tensor twice where Python lists it once. Computes in
// the dtype of its parameters; norms inside in fp32.
class CausalLm : public torch::nn::Module {
 public:
  // tokens int64 [B, T] → logits [B, T, V]; runs the forward hooks of the root.
  // Errors: InputError if T exceeds the model's positions.
  virtual at::Tensor logits(const at::Tensor& tokens) = 0;
};

// `seed` sets the values under Init::kRandom: the same on every rank, as `initial_values` gives
// them. Parameters are on `device`.
//
// Errors  InputError for what a config asks and the models do not have (dropout, activation, head
//         counts that do not divide), with the JSON pointer.
[[nodiscard]] std::shared_ptr<CausalLm> make_model(const plan::ModelConfig& config,
                                                   Init init,
                                                   uint64_t seed = 0,
                                                   c10::Device device = c10::kCPU);

}  // namespace shardlens::models
