#pragma once

#include <concepts>
#include <string>
#include <string_view>

#include <torch/csrc/autograd/custom_function.h>

namespace shardlens::models {

// A torch::autograd::Function that names its node of autograd's graph.
template <typename T>
concept NamesItsNode = requires {
  { T::kNodeName } -> std::convertible_to<std::string_view>;
};

// The same function without the name.
template <typename T>
struct Unnamed {
  static constexpr bool is_traceable = T::is_traceable;
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    return T::backward(ctx, grads);
  }
};

}  // namespace shardlens::models

namespace torch::autograd {

// LibTorch's node demangles the name of its class whenever it runs, and twice more while a profiler
// observes it.
template <shardlens::models::NamesItsNode T>
struct CppNode<T> : CppNode<shardlens::models::Unnamed<T>> {
  [[nodiscard]] std::string name() const override { return std::string(T::kNodeName); }
};

}  // namespace torch::autograd
