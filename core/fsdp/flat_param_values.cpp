// Values that users give to the parameters of a FlatParamHandle.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/core/grad_mode.h>

#include "core/base/error.h"
#include "core/fsdp/flat_param_handle.h"

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
