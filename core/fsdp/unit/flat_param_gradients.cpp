// The gradient of a FlatParamHandle's shard, and what parameters show of it.
#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "core/base/error.h"
#include "core/fsdp/unit/flat_param_handle.h"

namespace shardlens::fsdp {
namespace {

at::Tensor zero_gradient(const at::Tensor& shard, const Chunks& chunks) {
  return at::zeros({chunks.grad_numel}, shard.options().dtype(chunks.grad_dtype));
}

}  // namespace

void FlatParamHandle::store_grad(const at::Tensor& reduced, const std::vector<bool>& carried) {
  const at::NoGradGuard no_grad;
  at::Tensor& grad = shard_.mutable_grad();
  const bool whole = reduced.numel() == chunks_.grad_numel;
  for (size_t i = 0; i < slots_.size(); ++i) {
    has_grad_[i] = has_grad_[i] || (carried[i] && !frozen_[i]);
  }
  if (whole && !grad.defined()) {
    grad = stored_ = reduced.to(chunks_.grad_dtype);
    return;
  }
  if (whole) {
    grad.add_(reduced.to(chunks_.grad_dtype));
    return;
  }
  if (!grad.defined()) {
    grad = stored_ = zero_gradient(shard_, chunks_);
  }
  int64_t from = 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (carried[i]) {
      grad.narrow(0, chunks_.grad_starts[i], chunks_.numels[i])
          .add_(reduced.narrow(0, from, chunks_.numels[i]));
      from += chunks_.numels[i];
    }
  }
}

at::Tensor FlatParamHandle::to_host(const at::Tensor& reduced) const {
  const at::NoGradGuard no_grad;
  const at::Tensor cast = reduced.to(chunks_.grad_dtype);  // on the device
  const auto pinned = at::TensorOptions(chunks_.grad_dtype).pinned_memory(!cast.is_cpu());
  return at::empty(cast.sizes(), pinned).copy_(cast, /*non_blocking=*/true);
}

std::string FlatParamHandle::reduced_parameters() const {
  std::string names;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (gradients_->carried()[i]) {
      names += (names.empty() ? "'" : ", '") + slots_[i].fqn + "'";
    }
  }
  return "reduces gradients of " + names;
}

at::Tensor FlatParamHandle::grad_slice(size_t slot) const {
  const plan::ShardLayout::Slice slice = layout_.slice(rank_, slot);
  const bool by_chunk = layout_.layout() == plan::Layout::kPerParameter;
  const int64_t start = by_chunk           ? chunks_.grad_starts[slot]
                        : slice.numel == 0 ? 0
                                           : slice.shard_offset;
  // variable_data: Optimizer::zero_grad detaches in place, which is an error for a view.
  return shard_.mutable_grad().narrow(0, start, slice.numel).variable_data();
}

// [Note: Gradients that users change] A parameter's gradient is a view of the shard's, which
// reductions add to. The user may reset or assign it without a notice, so this compares it with
// what was published. An optimizer over flat_shards() resets the shard's own gradient instead.
std::vector<size_t> FlatParamHandle::adopt_user_grads() {
  std::vector<size_t> reset, assigned;
  const at::NoGradGuard no_grad;
  at::Tensor& grad = shard_.mutable_grad();
  if (!grad.is_same(stored_)) {
    if (grad.defined() && grad.numel() != chunks_.grad_numel) {
      throw UsageError(
          fmt::format("unit '{}': its shard has {} elements, but was given a gradient "
                      "of {}",
                      unit_, chunks_.grad_numel, grad.numel()));
    }
    stored_ = grad;
    for (size_t i = 0; i < slots_.size(); ++i) {
      has_grad_[i] = grad.defined() && !frozen_[i];
      at::Tensor& shown = slots_[i].parameter.mutable_grad();
      if (shown.defined() && shown.is_same(shown_[i])) {
        shown = at::Tensor();
        reset.push_back(i);
      }
      shown_[i] = at::Tensor();
    }
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    const at::Tensor& shown = slots_[i].parameter.mutable_grad();
    const bool same = shown.is_same(shown_[i]) &&
                      (!shown.defined() || shown.numel() == 0 || shown.is_alias_of(grad));
    if (!same && !frozen_[i]) {
      (shown.defined() ? assigned : reset).push_back(i);
    }
  }
  for (const size_t i : reset) {
    has_grad_[i] = has_grad_[i] && !shown_[i].defined();
    shown_[i] = at::Tensor();
  }
  if (assigned.empty() && std::ranges::count(has_grad_, true) == 0) {
    forget_grad();
    return reset;
  }
  for (const size_t i : reset) {
    if (!has_grad_[i] && grad.defined()) {
      grad_slice(i).zero_();
    }
  }
  for (const size_t i : assigned) {
    at::Tensor& shown = slots_[i].parameter.mutable_grad();
    const at::Tensor part = own_part(shown, i);
    if (!part.defined()) {
      throw UsageError(fmt::format(
          "parameter '{}' was given a gradient of shape [{}]; expected [{}], or [{}] as in this "
          "rank's slice",
          slots_[i].fqn, fmt::join(shown.sizes(), ", "), fmt::join(slots_[i].shape, ", "),
          shard_views_[i].numel()));
    }
    if (!grad.defined()) {
      grad = stored_ = zero_gradient(shard_, chunks_);
    }
    const at::Tensor slice = grad_slice(i);
    slice.copy_(part);
    shown = shown_[i] = slice;
    has_grad_[i] = true;
  }
  return reset;
}

void FlatParamHandle::add_zero_gradients(const std::vector<bool>& slots) {
  std::vector<at::Tensor> gradients(slots_.size());
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots[i]) {
      gradients[i] = at::zeros(slots_[i].shape, full_views_[i].options());
    }
  }
  gradients_->add(std::move(gradients));
}

void FlatParamHandle::publish_zeros(const std::vector<bool>& slots) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots[i] && !frozen_[i] && !has_grad_[i]) {
      at::Tensor& grad = shard_.mutable_grad();
      if (!grad.defined()) {
        grad = stored_ = zero_gradient(shard_, chunks_);
      }
      has_grad_[i] = true;
    }
  }
}

FlatParamHandle::Range FlatParamHandle::range_of(size_t slot,
                                                 const std::vector<bool>& carried) const {
  if (layout_.layout() == plan::Layout::kFlat) {
    const plan::ShardLayout::Slice slice = layout_.slice(rank_, slot);
    return {slice.numel == 0 ? 0 : slice.shard_offset, slice.numel};
  }
  Range range;
  for (size_t i = 0; i < slot; ++i) {
    range.start += carried[i] ? chunks_.numels[i] : 0;
  }
  range.numel = carried[slot] ? chunks_.numels[slot] : 0;
  return range;
}

bool FlatParamHandle::has_grads() const {
  return std::ranges::count(has_grad_, true) > 0;
}

std::vector<ShardUpdate> FlatParamHandle::updates(size_t first) const {
  if (!is_mixed()) {
    return {{first, shard_.detach(), shard_.grad()}};
  }
  std::vector<ShardUpdate> out;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (has_grad_[i]) {
      out.push_back({first, shard_views_[i], grad_slice(i)});
    }
    first += frozen_[i] ? 0 : 1;
  }
  return out;
}

void FlatParamHandle::forget_grad() {
  shard_.mutable_grad() = stored_ = at::Tensor();
  has_grad_.assign(slots_.size(), false);
  shown_.assign(slots_.size(), at::Tensor());
}

void FlatParamHandle::publish_grads() {
  adopt_user_grads();  // after a backward without sync, the shard's gradient may be that of the
                       // last step
  if (!shard_.mutable_grad().defined()) {
    return;
  }
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < slots_.size(); ++i) {
    at::Tensor& shown = slots_[i].parameter.mutable_grad();
    if (!shown.defined() && has_grad_[i]) {
      shown = shown_[i] = grad_slice(i);
    }
  }
}

void FlatParamHandle::zero_grad() {
  for (Slot& slot : slots_) {
    slot.parameter.mutable_grad() = at::Tensor();
  }
  forget_grad();
}

std::string FlatParamHandle::stray_use() const {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  for (size_t i = 0; i < slots_.size() && nodes != nullptr; ++i) {
    const auto node = torch::autograd::impl::try_get_grad_accumulator(slots_[i].parameter);
    if (node != nullptr && nodes->contains(node.get())) {
      return slots_[i].fqn;
    }
  }
  return "";
}

}  // namespace shardlens::fsdp
