#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/TensorBody.h>
#include <c10/util/ArrayRef.h>
#include <torch/nn/module.h>

#include "core/module/hookable.h"

// Layers with the parameter names, shapes and order of torch.nn and transformers. Unlike those of
// torch::nn they can be created without storage, so that no rank has to store the whole model. Each
// layer is Hookable and may be a unit.
//
// Shapes  B batch, T tokens, D features in, E features out, V vocabulary.
namespace shardlens::models {

enum class Init : uint8_t {  // what new parameters contain
  kRandom,                   // initial values with transformers' distributions (initial_values.h)
  kNone,  // only shapes: 0 bytes of storage until fully_shard and a checkpoint fill them
};

// A leaf fp32 tensor that requires grad; uninitialized (kRandom) or without storage (kNone).
[[nodiscard]] at::Tensor make_parameter(at::IntArrayRef shape, Init init);

// y = x · weightᵀ + bias; weight [E, D]. Source: torch.nn.Linear.
class LinearImpl : public torch::nn::Module {
 public:
  LinearImpl(int64_t in, int64_t out, bool with_bias, Init init);
  // A head whose weight is `tied`, the weight of the embedding: the same tensor with a second name.
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

// int64 [...] → [..., D]; weight [V, D]. Source: torch.nn.Embedding; with a scale transformers
// Gemma3TextScaledWordEmbedding.
class EmbeddingImpl : public torch::nn::Module {
 public:
  struct Options {
    int64_t padding_index = -1;  // this row gets no gradient; -1: every row does
    double scale = 1.0;          // of the result, rounded to the weight's dtype
  };
  EmbeddingImpl(int64_t count, int64_t features, Init init)
      : EmbeddingImpl(count, features, init, Options()) {}
  EmbeddingImpl(int64_t count, int64_t features, Init init, const Options& options);
  at::Tensor forward(const at::Tensor& indices);

  at::Tensor weight;

 private:
  Options options_;
};
SHARDLENS_MODULE(Embedding);

// x / rms(x) · (offset + weight); statistics in fp32 for every dtype. Source: transformers
// LlamaRMSNorm; with offset 1 Gemma2RMSNorm.
class RMSNormImpl : public torch::nn::Module {
 public:
  RMSNormImpl(int64_t features, double epsilon, Init init, double offset = 0.0);
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight;

 private:
  double epsilon_, offset_;
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

// "silu", "gelu", "gelu_new" and "gelu_pytorch_tanh" (the same), "relu". Source: transformers
// ACT2FN.
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

// An identity in place of transformers' Dropout, so that modules have the same names. make_model
// refuses a model with dropout.
class DropoutImpl : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& input) { return input; }
};
SHARDLENS_MODULE(Dropout);

}  // namespace shardlens::models
