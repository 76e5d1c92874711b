#pragma once

#include <ATen/core/TensorBody.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "core/module/hookable.h"

namespace shardlens::test {

// PyTorch's test_contract.ToyModel: two Sequentials of two Linears, here with hooks, and a buffer.
struct ChainImpl : torch::nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  at::Tensor forward(const at::Tensor& x) { return SequentialImpl::forward(x); }
};
SHARDLENS_MODULE(Chain);

struct ToyImpl : torch::nn::Module {
  ToyImpl() {
    for (int i = 0; i < 2; ++i) {
      seq1->push_back(torch::nn::Linear(5, 5));
      seq2->push_back(torch::nn::Linear(5, 5));
    }
    register_module("seq1", seq1);
    register_module("seq2", seq2);
    position = register_buffer("position", at::zeros({5}));
    scale = register_buffer("scale", at::zeros({5}));
  }
  at::Tensor forward(const at::Tensor& x) {
    return seq2->forward(at::relu(seq1->forward(x)) + position);
  }
  Chain seq1, seq2;
  at::Tensor position, scale;
};
SHARDLENS_MODULE(Toy);

}  // namespace shardlens::test
