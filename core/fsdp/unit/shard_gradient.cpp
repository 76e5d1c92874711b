#include "core/fsdp/unit/shard_gradient.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "core/base/error.h"

namespace shardlens::fsdp {

ShardGradient::ShardGradient(FlatShard& shard)
    : shard_(shard), exists_(shard.slots().size(), false), shown_(shard.slots().size()) {}

void ShardGradient::store(const at::Tensor& reduced, const std::vector<bool>& carried) {
  const at::NoGradGuard no_grad;
  at::Tensor& grad = shard_.values().mutable_grad();
  const bool whole = reduced.numel() == shard_.chunks().grad_numel;
  for (size_t i = 0; i < shard_.slots().size(); ++i) {
    exists_[i] = exists_[i] || (carried[i] && !shard_.is_frozen(i));
  }
  if (whole && !grad.defined()) {
    grad = stored_ = reduced.to(shard_.chunks().grad_dtype);
    return;
  }
  if (whole) {
    grad.add_(reduced.to(shard_.chunks().grad_dtype));
    return;
  }
  make_if_missing();
  int64_t from = 0;
  for (size_t i = 0; i < shard_.slots().size(); ++i) {
    if (carried[i]) {
      grad.narrow(0, shard_.chunks().grad_starts[i], shard_.chunks().numels[i])
          .add_(reduced.narrow(0, from, shard_.chunks().numels[i]));
      from += shard_.chunks().numels[i];
    }
  }
}

at::Tensor ShardGradient::to_host(const at::Tensor& reduced) const {
  const at::NoGradGuard no_grad;
  const at::Tensor cast = reduced.to(shard_.chunks().grad_dtype);  // on the device
  const auto pinned = at::TensorOptions(shard_.chunks().grad_dtype).pinned_memory(!cast.is_cpu());
  return at::empty(cast.sizes(), pinned).copy_(cast, /*non_blocking=*/true);
}

at::Tensor ShardGradient::slice(size_t slot) const {
  const plan::ShardLayout::Slice slice = shard_.layout().slice(shard_.rank(), slot);
  const bool by_chunk = shard_.layout().layout() == plan::Layout::kPerParameter;
  const int64_t start = by_chunk           ? shard_.chunks().grad_starts[slot]
                        : slice.numel == 0 ? 0
                                           : slice.shard_offset;
  // variable_data: Optimizer::zero_grad detaches in place, which is an error for a view.
  return shard_.values().mutable_grad().narrow(0, start, slice.numel).variable_data();
}

void ShardGradient::make_if_missing() {
  at::Tensor& grad = shard_.values().mutable_grad();
  if (!grad.defined()) {
    const Chunks& chunks = shard_.chunks();
    grad = stored_ =
        at::zeros({chunks.grad_numel}, shard_.values().options().dtype(chunks.grad_dtype));
  }
}

// [Note: Gradients that users change] A parameter's gradient is a view of the shard's, which
// reductions add to. The user may reset or assign it without a notice, so this compares it with
// what was published. An optimizer over flat_shards() resets the shard's own gradient instead.
std::vector<size_t> ShardGradient::adopt() {
  const at::NoGradGuard no_grad;
  const at::Tensor& grad = shard_.values().mutable_grad();
  std::vector<size_t> reset = grad.is_same(stored_) ? std::vector<size_t>() : adopt_replaced();
  std::vector<size_t> assigned;
  for (size_t i = 0; i < shard_.slots().size(); ++i) {
    const at::Tensor& shown = shard_.slots()[i].parameter.mutable_grad();
    const bool same = shown.is_same(shown_[i]) &&
                      (!shown.defined() || shown.numel() == 0 || shown.is_alias_of(grad));
    if (!same && !shard_.is_frozen(i)) {
      (shown.defined() ? assigned : reset).push_back(i);
    }
  }
  for (const size_t i : reset) {
    exists_[i] = exists_[i] && !shown_[i].defined();
    shown_[i] = at::Tensor();
  }
  if (assigned.empty() && !exists()) {
    forget();
    return reset;
  }
  for (const size_t i : reset) {
    if (!exists_[i] && grad.defined()) {
      slice(i).zero_();
    }
  }
  for (const size_t i : assigned) {
    assign(i);
  }
  return reset;
}

// The user has given the shard another gradient, or none. Returns the slots that showed the old
// one.
std::vector<size_t> ShardGradient::adopt_replaced() {
  std::vector<size_t> reset;
  const at::Tensor& grad = shard_.values().mutable_grad();
  if (grad.defined() && grad.numel() != shard_.chunks().grad_numel) {
    throw UsageError(
        fmt::format("unit '{}': its shard has {} elements, but was given a gradient of {}",
                    shard_.unit(), shard_.chunks().grad_numel, grad.numel()));
  }
  stored_ = grad;
  for (size_t i = 0; i < shard_.slots().size(); ++i) {
    exists_[i] = grad.defined() && !shard_.is_frozen(i);
    at::Tensor& shown = shard_.slots()[i].parameter.mutable_grad();
    if (shown.defined() && shown.is_same(shown_[i])) {
      shown = at::Tensor();
      reset.push_back(i);
    }
    shown_[i] = at::Tensor();
  }
  return reset;
}

// Copies the gradient that the user has given to a parameter.
void ShardGradient::assign(size_t slot) {
  const FlatParamSlot& each = shard_.slots()[slot];
  at::Tensor& shown = each.parameter.mutable_grad();
  const at::Tensor part = shard_.own_part(shown, slot);
  if (!part.defined()) {
    throw UsageError(fmt::format(
        "parameter '{}' was given a gradient of shape [{}]; expected [{}], or [{}] as in this "
        "rank's slice",
        each.fqn, fmt::join(shown.sizes(), ", "), fmt::join(each.shape, ", "),
        shard_.view(slot).numel()));
  }
  make_if_missing();
  const at::Tensor own = slice(slot);
  own.copy_(part);
  shown = shown_[slot] = own;
  exists_[slot] = true;
}

void ShardGradient::publish_zeros(const std::vector<bool>& slots) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < shard_.slots().size(); ++i) {
    if (slots[i] && !shard_.is_frozen(i) && !exists_[i]) {
      make_if_missing();
      exists_[i] = true;
    }
  }
}

FlatParamRange ShardGradient::range_of(size_t slot, const std::vector<bool>& carried) const {
  if (shard_.layout().layout() == plan::Layout::kFlat) {
    const plan::ShardLayout::Slice slice = shard_.layout().slice(shard_.rank(), slot);
    return {slice.numel == 0 ? 0 : slice.shard_offset, slice.numel};
  }
  FlatParamRange range;
  for (size_t i = 0; i < slot; ++i) {
    range.start += carried[i] ? shard_.chunks().numels[i] : 0;
  }
  range.numel = carried[slot] ? shard_.chunks().numels[slot] : 0;
  return range;
}

bool ShardGradient::exists() const {
  return std::ranges::count(exists_, true) > 0;
}

std::vector<ShardUpdate> ShardGradient::updates(size_t first) const {
  if (!shard_.is_mixed()) {
    return {{first, shard_.values().detach(), shard_.values().grad()}};
  }
  std::vector<ShardUpdate> out;
  for (size_t i = 0; i < shard_.slots().size(); ++i) {
    if (exists_[i]) {
      out.push_back({first, shard_.view(i), slice(i)});
    }
    first += shard_.is_frozen(i) ? 0 : 1;
  }
  return out;
}

void ShardGradient::forget() {
  shard_.values().mutable_grad() = stored_ = at::Tensor();
  exists_.assign(shard_.slots().size(), false);
  shown_.assign(shard_.slots().size(), at::Tensor());
}

void ShardGradient::publish() {
  adopt();  // after a backward without sync, the shard's gradient may be that of the last step
  if (!shard_.values().mutable_grad().defined()) {
    return;
  }
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < shard_.slots().size(); ++i) {
    at::Tensor& shown = shard_.slots()[i].parameter.mutable_grad();
    if (!shown.defined() && exists_[i]) {
      shown = shown_[i] = slice(i);
    }
  }
}

void ShardGradient::zero() {
  for (const FlatParamSlot& slot : shard_.slots()) {
    slot.parameter.mutable_grad() = at::Tensor();
  }
  forget();
}

}  // namespace shardlens::fsdp
