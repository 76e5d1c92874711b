#include "core/fsdp/unit/flat_views.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include "core/base/error.h"

namespace shardlens::fsdp {

FlatViewsBackward::FlatViewsBackward(const at::Tensor& flat,
                                     const std::vector<at::Tensor>& views,
                                     std::shared_ptr<UnshardedGradients> gradients,
                                     bool to_flat,
                                     std::function<void()> ended)
    : Node({torch::autograd::impl::gradient_edge(flat)}),
      gradients_(std::move(gradients)),
      to_flat_(to_flat),
      ended_(std::move(ended)) {
  for (const at::Tensor& view : views) {
    add_input_metadata(view);
  }
}

bool FlatViewsBackward::awaited() const {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  // const_cast because the set's keys are not const; the lookup changes nothing.
  return nodes != nullptr && nodes->contains(const_cast<FlatViewsBackward*>(this)) &&
         last_backward_ != torch::autograd::get_current_graph_task_id();
}

torch::autograd::variable_list FlatViewsBackward::apply(
    torch::autograd::variable_list&& gradients) {
  if (at::GradMode::is_enabled()) {
    throw UsageError(
        "gradients of gradients (create_graph) through sharded parameters are not supported");
  }
  gradients_->add(std::move(gradients));
  const at::Tensor flat = to_flat_ ? gradients_->take() : at::Tensor();
  last_backward_ = torch::autograd::get_current_graph_task_id();
  if (ended_) {
    ended_();
  }
  return {flat};
}

}  // namespace shardlens::fsdp
