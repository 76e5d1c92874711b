// Values that users give to the parameters of a FlatParamHandle.
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/core/grad_mode.h>

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

// [Note: Values that users assign] Between steps a parameter is a view of the shard, so values that
// are written in place are the shard's. set_data() (torch::load, Module::to) gives it other data
// instead; this copies them. A unit that was kept unsharded shows its unsharded parameters, which
// the next reshard drops; this copies what was written to them, so that it is the same whether a
// unit is kept or not.
void FlatParamHandle::adopt_user_values() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < slots().size(); ++i) {
    const at::Tensor& parameter = slots()[i].parameter;
    const bool same = shows(parameter, full_ ? full_views_[i] : shard_.view(i));
    if (!same || (full_ && !shard_.whole() && storage_.is_allocated() &&
                  parameter._version() != versions_[i])) {
      adopt_value(i);
    }
  }
}

void FlatParamHandle::adopt_value(size_t slot) {
  const at::Tensor& own = full_ ? full_views_[slot] : shard_.view(slot);
  const at::Tensor& given = slots()[slot].parameter;
  const std::string& fqn = slots()[slot].fqn;
  if (given.scalar_type() != own.scalar_type() || given.device() != own.device()) {
    throw UsageError(fmt::format(
        "parameter '{}' was {} {} when it was sharded, and is now {} {}; convert or move the "
        "model before sharding it, and load values of the same dtype and device",
        fqn, toString(own.scalar_type()), own.device().str(), toString(given.scalar_type()),
        given.device().str()));
  }
  const at::Tensor part = shard_.own_part(given, slot);
  if (!part.defined()) {
    throw UsageError(fmt::format(
        "parameter '{}' was given values of shape [{}]; expected [{}], or [{}] as in this rank's "
        "slice",
        fqn, fmt::join(given.sizes(), ", "), fmt::join(slots()[slot].shape, ", "),
        shard_.view(slot).numel()));
  }
  const int64_t before = shard_.values()._version();
  shard_.view(slot).copy_(part);
  if (full_ && given.sizes() == own.sizes()) {  // the unsharded parameter gets the value too
    if (!shows(given, own) && storage_.is_allocated()) {
      own.copy_(given);
    }
    storage_.has_values_of(shard_.values()._version() - before + given._version() -
                           versions_[slot]);
  }
  if (!shows(given, own)) {
    const bool edges = full_ && with_edges_;
    repoint(slot, own);
    if (edges) {
      set_edge(slot);
    } else {
      slots()[slot].parameter.set_requires_grad(!full_ && !is_frozen(slot));
    }
  }
  versions_[slot] = slots()[slot].parameter._version();
}

void FlatParamHandle::summon(const at::Tensor& shards, const at::Tensor& gradients, bool to_cpu) {
  const at::NoGradGuard no_grad;
  summoned_.open = true;
  summoned_.hidden.resize(slots().size());
  for (size_t i = 0; i < slots().size(); ++i) {
    const at::Tensor& parameter = slots()[i].parameter;
    summoned_.hidden[i] = std::exchange(parameter.mutable_grad(), at::Tensor());
    const at::Tensor whole = shard_.parameter_of(shards, i);
    repoint(i, to_cpu ? whole.to(at::kCPU) : whole);
    parameter.set_requires_grad(!is_frozen(i));
    if (gradients.defined() && gradient_.exists(i)) {
      parameter.mutable_grad() = shard_.gradient_of(gradients, i).to(parameter.device());
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
  for (size_t i = 0; i < slots().size() && writeback; ++i) {
    const at::Tensor& given = slots()[i].parameter;
    const at::Tensor& grad = given.grad();
    if (given.sizes() != full_views_[i].sizes() ||
        given.scalar_type() != shard_.view(i).scalar_type()) {
      wrong =
          fmt::format("parameter '{}' was given values of shape [{}] in {}; expected [{}] in {}",
                      slots()[i].fqn, fmt::join(given.sizes(), ", "), toString(given.scalar_type()),
                      fmt::join(slots()[i].shape, ", "), toString(shard_.view(i).scalar_type()));
    } else if (grad.defined() && grad.sizes() != full_views_[i].sizes()) {
      wrong = fmt::format("parameter '{}' was given a gradient of shape [{}]; expected [{}]",
                          slots()[i].fqn, fmt::join(grad.sizes(), ", "),
                          fmt::join(slots()[i].shape, ", "));
    }
  }
  for (size_t i = 0; i < slots().size(); ++i) {
    if (writeback && wrong.empty()) {
      write_back(i);
    }
    slots()[i].parameter.mutable_grad() = std::exchange(summoned_.hidden[i], at::Tensor());
  }
  point_to_shard();
  if (!wrong.empty()) {
    throw UsageError(wrong);
  }
}

void FlatParamHandle::write_back(size_t slot) {
  const at::Tensor& given = slots()[slot].parameter;
  shard_.view(slot).copy_(shard_.own_part(given, slot));
  at::Tensor& shown = summoned_.hidden[slot];
  if (!summoned_.grads || !shown.defined()) {
    return;
  }
  if (given.grad().defined()) {
    shown.copy_(shard_.own_part(given.grad(), slot));
  } else {
    shown = at::Tensor();
  }
}

}  // namespace shardlens::fsdp
