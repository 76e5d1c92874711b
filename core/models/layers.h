#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/TensorBody.h>
#include <c10/util/ArrayRef.h>
#include <torch/nn/module.h>

#include "core/module/hookable.h"

// Layers with the parameter names, shapes and order of torch.nn's and transformers' own. Unlike
// torch::nn's they can be made without storage, so that a rank never holds a whole model; each is
// Hookable and may be a unit of its own.
//
// Shapes  B batch, T tokens, D features in, E features out, V vocabulary.
namespace shardlens::models {

enum class Init : uint8_t {
  kRandom,  // values as transformers draws them (initial_values.h)
  kNone,    // shapes only: 0 bytes of storage until fully_shard and a checkpoint fill them
};

// A leaf fp32 tensor that requires grad; not yet filled (kRandom) or without storage (kNone).
[[nodiscard]] at::Tensor make_parameter(at::IntArrayRef shape, Init init);

// y = x · weightᵀ + bias; weight [E, D]. Source: torch.nn.Linear.
class LinearImpl : public torch::nn::Module {
 public:
  LinearImpl(int64_t in, int64_t out, bool with_bias, Init init);
  // A head that shares `tied`, the embedding's weight: the same Tensor object under a second name.
  explicit LinearImpl(const at::Tensor& tied);
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight, bias;
};
SHARDLENS_MODULE(Linear);

// y = x · weight + bias; weight [D, E]. Source: transformers.pytorch_utils.Conv1D.
class Conv1DImpl : public torch::nn::Module {
 public:
  Conv1DImpl(int64_t in, int64_t out, Init init);
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight, bias;
};
SHARDLENS_MODULE(Conv1D);

// int64 [...] → [..., D]; weight [V, D]. Source: torch.nn.Embedding.
class EmbeddingImpl : public torch::nn::Module {
 public:
  EmbeddingImpl(int64_t count, int64_t features, Init init);
  at::Tensor forward(const at::Tensor& indices);

  at::Tensor weight;
};
SHARDLENS_MODULE(Embedding);

// x / rms(x) · weight, statistics in fp32 whatever the dtype. Source: transformers LlamaRMSNorm.
class RMSNormImpl : public torch::nn::Module {
 public:
  RMSNormImpl(int64_t features, double epsilon, Init init);
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight;

 private:
  double epsilon_;
};
SHARDLENS_MODULE(RMSNorm);

// Source: torch.nn.LayerNorm over the last dimension.
class LayerNormImpl : public torch::nn::Module {
 public:
  LayerNormImpl(int64_t features, double epsilon, Init init);
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight, bias;

 private:
  double epsilon_;
};
SHARDLENS_MODULE(LayerNorm);

// "silu", "gelu", "gelu_new", "relu". Source: transformers ACT2FN.
class ActivationImpl : public torch::nn::Module {
 public:
  explicit ActivationImpl(const std::string& name);
  at::Tensor forward(const at::Tensor& input);
  [[nodiscard]] bool is_silu() const { return kind_ == Kind::kSilu; }

 private:
  enum class Kind : uint8_t { kSilu, kGelu, kGeluTanh, kRelu };
  Kind kind_;
};
SHARDLENS_MODULE(Activation);

// Where transformers has a Dropout: the identity, because make_model refuses a model with dropout.
// There so that the modules' names are the same.
class DropoutImpl : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& input) { return input; }
};
SHARDLENS_MODULE(Dropout);

}  // namespace shardlens::models
