#include "core/fsdp/flat_views.h"

#include <cstring>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include "core/base/error.h"

namespace shardlens::fsdp {

FlatViewsBackward::FlatViewsBackward(const at::Tensor& flat,
                                     const std::vector<Piece>& pieces,
                                     const std::vector<at::Tensor>& views,
                                     std::function<void()> ended)
    : Node({torch::autograd::impl::gradient_edge(flat)}),
      pieces_(pieces),
      options_(flat.options().requires_grad(false)),
      numel_(flat.numel()),
      ended_(std::move(ended)) {
  for (const at::Tensor& view : views) {
    add_input_metadata(view);
  }
}

bool FlatViewsBackward::awaited() const {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  // The set's keys are not const; looking one up changes nothing.
  return nodes != nullptr && nodes->contains(const_cast<FlatViewsBackward*>(this)) &&
         last_backward_ != torch::autograd::get_current_graph_task_id();
}

torch::autograd::variable_list FlatViewsBackward::apply(
    torch::autograd::variable_list&& gradients) {
  at::RecordFunction record(at::RecordScope::FUNCTION);
  if (record.isActive()) {
    record.before("fsdp::flatten_gradients");
  }
  if (at::GradMode::is_enabled()) {
    throw UsageError(
        "gradients of gradients (create_graph) through sharded parameters are not supported");
  }
  at::Tensor flat = at::empty({numel_}, options_);
  const bool host = flat.is_cpu();
  auto* bytes = static_cast<std::byte*>(flat.data_ptr());
  const auto item = static_cast<int64_t>(flat.element_size());
  for (const Piece& piece : pieces_) {
    const at::Tensor gradient =
        piece.parameter < 0 ? at::Tensor() : gradients[static_cast<size_t>(piece.parameter)];
    std::byte* target = bytes + piece.offset * item;
    const auto size = static_cast<size_t>(piece.numel * item);
    if (!gradient.defined()) {
      if (host) {
        std::memset(target, 0, size);
      } else {
        flat.narrow(0, piece.offset, piece.numel).zero_();
      }
    } else if (host && gradient.is_contiguous() && gradient.scalar_type() == flat.scalar_type()) {
      std::memcpy(target, gradient.data_ptr(),
                  size);  // an operator each would cost more than the copy
    } else {
      flat.narrow(0, piece.offset, piece.numel).view(gradient.sizes()).copy_(gradient);
    }
  }
  last_backward_ = torch::autograd::get_current_graph_task_id();
  if (ended_) {
    ended_();
  }
  return {flat};
}

}  // namespace shardlens::fsdp
