#pragma once

#include <ATen/Context.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

namespace shardlens::test {

// Three Linears with ReLUs between, so that the parameters are "0.weight", "2.weight", "4.weight".
struct StackImpl : torch::nn::SequentialImpl {
  explicit StackImpl(int64_t width = 10, bool bias = false) {
    for (int i = 0; i < 3; ++i) {
      push_back(torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(bias)));
      if (i < 2) {
        push_back(torch::nn::Functional(at::relu));
      }
    }
  }
  at::Tensor forward(const at::Tensor& x) { return SequentialImpl::forward(x); }
};
TORCH_MODULE(Stack);

inline Stack make_stack(int64_t width = 10, bool bias = false) {
  at::manual_seed(0);
  return Stack(width, bias);
}

inline at::Tensor weight_of(const torch::nn::SequentialImpl& stack, size_t index) {
  return stack.children()[index]->as<torch::nn::Linear>()->weight;
}

}  // namespace shardlens::test
