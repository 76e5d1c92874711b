#include "core/replicate/output_sink.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>

#include "core/composable/autograd_node.h"

namespace shardlens::replicate {
namespace {

class SinkNode final : public torch::autograd::Node {
 public:
  explicit SinkNode(std::function<void()> on_backward) : on_backward_(std::move(on_backward)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (on_backward_) {
      on_backward_();
    }
    return std::move(gradients);
  }

 private:
  std::function<void()> on_backward_;
};

}  // namespace

void pass_through_sink(module::TensorRefs& outputs, std::function<void()> on_backward) {
  torch::autograd::variable_list inputs;
  for (const at::Tensor* output : outputs) {
    if (output->defined() && output->requires_grad() && output->grad_fn() != nullptr) {
      inputs.push_back(*output);
    }
  }
  if (inputs.empty()) {
    return;
  }
  const auto node = composable::make_node<SinkNode>(std::move(on_backward));
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  for (at::Tensor* output : outputs) {
    if (output->defined() && output->requires_grad() && output->grad_fn() != nullptr) {
      at::Tensor copy;
      {
        const at::NoGradGuard no_grad;
        copy = output->clone();
      }
      torch::autograd::create_gradient_edge(copy, node);
      *output = std::move(copy);
    }
  }
}

}  // namespace shardlens::replicate
