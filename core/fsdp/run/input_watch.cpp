#include "core/fsdp/run/input_watch.h"

#include <memory>
#include <utility>

#include <torch/csrc/autograd/function.h>

#include "core/composable/autograd_node.h"

namespace shardlens::fsdp {
namespace {

class InputsBackward final : public torch::autograd::Node {
 public:
  explicit InputsBackward(std::function<void()> ended) : ended_(std::move(ended)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    ended_();
    return std::move(gradients);
  }

 private:
  std::function<void()> ended_;
};

}  // namespace

void watch_inputs(module::TensorRefs& inputs, InputWatch how, std::function<void()> ended) {
  torch::autograd::variable_list watched;
  for (at::Tensor* input : inputs) {
    if (input->defined() && input->requires_grad()) {
      if (how == InputWatch::kHooks) {
        *input = module::hookable_alias(*input);
      }
      watched.push_back(*input);
    }
  }
  if (watched.empty()) {
    return;
  }
  if (how == InputWatch::kHooks) {
    const auto left = std::make_shared<size_t>(watched.size());
    for (const at::Tensor& input : watched) {
      input.register_hook([left, all = watched.size(), ended](const at::Tensor& /*gradient*/) {
        if (--*left == 0) {
          *left = all;  // there may be another backward
          ended();
        }
      });
    }
    return;
  }
  const auto node = composable::make_node<InputsBackward>(std::move(ended));
  node->set_next_edges(torch::autograd::collect_next_edges(watched));
  for (at::Tensor* input : inputs) {
    if (input->defined() && input->requires_grad()) {
      at::Tensor alias = input->detach();
      torch::autograd::create_gradient_edge(alias, node);
      *input = std::move(alias);
    }
  }
}

}  // namespace shardlens::fsdp
