#pragma once

#include <cstdint>
#include <tuple>

#include <ATen/core/TensorBody.h>
#include <torch/nn/module.h>

#include "core/model/model_config.h"
#include "core/models/layers.h"
#include "core/module/hookable.h"
#include "core/tree/module_tree.h"

// The MLP of a sparse layer.
//
// Shapes  R rows, D hidden, E experts, K experts per row, I intermediate.
// Source  transformers 5.23 models/mixtral/modeling_mixtral.py, models/qwen3_moe; grouped as in its
//         integrations/moe.py.
namespace shardlens::models {

// Chooses the experts of each row.
class RouterImpl : public torch::nn::Module {
 public:
  // `fp32`: the weights stay fp32, otherwise they have the dtype of the rows.
  RouterImpl(const plan::ModelConfig& config, bool fp32, Init init);
  // x [R, D] → weights [R, K], experts int64 [R, K].
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x);

  at::Tensor weight;  // [E, D]

 private:
  int64_t per_row_;
  bool normalized_, fp32_;
};
SHARDLENS_MODULE(Router);

// The weights of all experts, in two parameters.
class ExpertsImpl : public torch::nn::Module {
 public:
  ExpertsImpl(const plan::ModelConfig& config, Init init);
  // x [R, D], weights [R, K], chosen int64 [R, K] → [R, D].
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& chosen);

  at::Tensor gate_up_proj, down_proj;  // [E, 2 · I, D], [E, D, I]

 private:
  Activation act_fn_{nullptr};
};
SHARDLENS_MODULE(Experts);

class SparseMlpImpl : public torch::nn::Module {  // an MLP of experts, and the router that chooses
 public:
  SparseMlpImpl(const plan::ModelConfig& config, Init init);
  // x [B, T, D] → [B, T, D].
  at::Tensor forward(const at::Tensor& x);

 private:
  Router router_{nullptr};
  Experts experts_{nullptr};
};
SHARDLENS_MODULE(SparseMlp);

}  // namespace shardlens::models
