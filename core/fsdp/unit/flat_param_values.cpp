// Values that users give to the parameters of a FlatParamHandle.
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/core/grad_mode.h>
#include <c10/util/accumulate.h>

#include "core/base/error.h"
#include "core/fsdp/unit/flat_param_handle.h"

namespace shardlens::fsdp {
namespace {

// Whether `tensor` has the elements of `own`, and not only equal ones.
bool shows(const at::Tensor& tensor, const at::Tensor& own) {
  return tensor.is_alias_of(own) && tensor.scalar_type() == own.scalar_type() &&
         tensor.sizes() == own.sizes() && tensor.strides() == own.strides() &&
         tensor.storage_offset() == own.storage_offset();
}

}  // namespace

at::Tensor FlatParamHandle::own_part(const at::Tensor& given, size_t slot) const {
  const plan::ShardLayout::Slice slice = layout_.slice(rank_, slot);
  if (given.sizes() == full_views_[slot].sizes()) {
    return given.reshape({-1}).narrow(0, slice.numel == 0 ? 0 : slice.param_offset, slice.numel);
  }
  return given.dim() == 1 && given.numel() == slice.numel ? given : at::Tensor();
}

// [Note: Values that users assign] Between steps a parameter is a view of the shard, so values that
// are written in place are the shard's. set_data() (torch::load, Module::to) gives it other data
// instead; this copies them. A unit that was kept unsharded shows its unsharded parameters, which
// the next reshard drops; this copies what was written to them, so that it is the same whether a
// unit is kept or not.
void FlatParamHandle::adopt_user_values() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const at::Tensor& parameter = slots_[i].parameter;
    const bool same = shows(parameter, full_ ? full_views_[i] : shard_views_[i]);
    if (!same || (full_ && !whole_ && is_allocated() && parameter._version() != versions_[i])) {
      adopt_value(i);
    }
  }
}

void FlatParamHandle::adopt_value(size_t slot) {
  const at::Tensor& own = full_ ? full_views_[slot] : shard_views_[slot];
  const at::Tensor& given = slots_[slot].parameter;
  const std::string& fqn = slots_[slot].fqn;
  if (given.scalar_type() != own.scalar_type() || given.device() != own.device()) {
    throw UsageError(fmt::format(
        "parameter '{}' was {} {} when it was sharded, and is now {} {}; convert or move the "
        "model before sharding it, and load values of the same dtype and device",
        fqn, toString(own.scalar_type()), own.device().str(), toString(given.scalar_type()),
        given.device().str()));
  }
  const at::Tensor part = own_part(given, slot);
  if (!part.defined()) {
    throw UsageError(fmt::format(
        "parameter '{}' was given values of shape [{}]; expected [{}], or [{}] as in this rank's "
        "slice",
        fqn, fmt::join(given.sizes(), ", "), fmt::join(slots_[slot].shape, ", "),
        shard_views_[slot].numel()));
  }
  const int64_t before = shard_._version();
  shard_views_[slot].copy_(part);
  if (full_ && given.sizes() == own.sizes()) {  // the unsharded parameter gets the value too
    if (!shows(given, own) && is_allocated()) {
      own.copy_(given);
    }
    gathered_version_ += shard_._version() - before + given._version() - versions_[slot];
  }
  if (!shows(given, own)) {
    const bool edges = full_ && with_edges_;
    repoint(slot, own);
    if (edges) {
      set_edge(slot);
    } else {
      slots_[slot].parameter.set_requires_grad(!full_ && !frozen_[slot]);
    }
  }
  versions_[slot] = slots_[slot].parameter._version();
}

at::Tensor FlatParamHandle::gradient_of(const at::Tensor& gradients, size_t slot) const {
  const std::vector<int64_t>& shape = slots_[slot].shape;
  const int64_t numel = c10::multiply_integers(shape);
  if (layout_.layout() == plan::Layout::kFlat) {
    return gradients.narrow(0, full_views_[slot].storage_offset(), numel).view(shape);
  }
  return gradients.view({layout_.ranks(), -1})
      .narrow(1, chunks_.grad_starts[slot], chunks_.numels[slot])
      .reshape({-1})
      .narrow(0, 0, numel)
      .view(shape);
}

void FlatParamHandle::summon(const at::Tensor& shards, const at::Tensor& gradients, bool to_cpu) {
  const at::NoGradGuard no_grad;
  summoned_.open = true;
  summoned_.hidden.resize(slots_.size());
  for (size_t i = 0; i < slots_.size(); ++i) {
    at::Tensor& parameter = slots_[i].parameter;
    summoned_.hidden[i] = std::exchange(parameter.mutable_grad(), at::Tensor());
    const at::Tensor whole = parameter_of(shards, i);
    repoint(i, to_cpu ? whole.to(at::kCPU) : whole);
    parameter.set_requires_grad(!frozen_[i]);
    if (gradients.defined() && has_grad_[i]) {
      parameter.mutable_grad() = gradient_of(gradients, i).to(parameter.device());
    }
  }
  summoned_.grads = gradients.defined();
}

void FlatParamHandle::end_summon(bool writeback) {
  if (!std::exchange(summoned_.open, false)) {
    return;  // rank0_only: this rank has kept its slices
  }
  const at::NoGradGuard no_grad;
  std::string wrong;
  for (size_t i = 0; i < slots_.size() && writeback; ++i) {
    const at::Tensor& given = slots_[i].parameter;
    const at::Tensor& grad = given.grad();
    if (given.sizes() != full_views_[i].sizes() ||
        given.scalar_type() != shard_views_[i].scalar_type()) {
      wrong =
          fmt::format("parameter '{}' was given values of shape [{}] in {}; expected [{}] in {}",
                      slots_[i].fqn, fmt::join(given.sizes(), ", "), toString(given.scalar_type()),
                      fmt::join(slots_[i].shape, ", "), toString(shard_views_[i].scalar_type()));
    } else if (grad.defined() && grad.sizes() != full_views_[i].sizes()) {
      wrong = fmt::format("parameter '{}' was given a gradient of shape [{}]; expected [{}]",
                          slots_[i].fqn, fmt::join(grad.sizes(), ", "),
                          fmt::join(slots_[i].shape, ", "));
    }
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (writeback && wrong.empty()) {
      write_back(i);
    }
    slots_[i].parameter.mutable_grad() = std::exchange(summoned_.hidden[i], at::Tensor());
  }
  point_to_shard();
  if (!wrong.empty()) {
    throw UsageError(wrong);
  }
}

void FlatParamHandle::write_back(size_t slot) {
  const at::Tensor& given = slots_[slot].parameter;
  shard_views_[slot].copy_(own_part(given, slot));
  at::Tensor& shown = summoned_.hidden[slot];
  if (!summoned_.grads || !shown.defined()) {
    return;
  }
  if (given.grad().defined()) {
    shown.copy_(own_part(given.grad(), slot));
  } else {
    shown = at::Tensor();
  }
}

int64_t FlatParamHandle::value_version() const {
  int64_t version = shard_._version();
  for (const Slot& slot : slots_) {
    version += slot.parameter._version();
  }
  return version;
}

void FlatParamHandle::note_gather() {
  if (!sub_shard_.defined()) {
    gathered_version_ = value_version();
    written_ = false;
  }
}

bool FlatParamHandle::is_stale() const {
  return !whole_ && (is_allocated() || gathered_.defined() || sub_shard_.defined()) &&
         (written_ || value_version() != gathered_version_);
}

}  // namespace shardlens::fsdp
