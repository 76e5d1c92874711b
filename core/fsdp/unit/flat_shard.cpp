#include "core/fsdp/unit/flat_shard.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include "core/base/error.h"
#include "core/fsdp/unit/tensor_storage.h"

namespace shardlens::fsdp {
namespace {

// The first trained parameter or, if all are frozen, the first.
const FlatParamSlot& representative(const std::vector<FlatParamSlot>& slots) {
  const auto trained = std::ranges::find_if(
      slots, [](const FlatParamSlot& each) { return each.parameter.requires_grad(); });
  return trained == slots.end() ? slots.front() : *trained;
}

// Checks that all parameters have the same device, the same requires_grad unless
// `mixed_requires_grad`, and the same dtype; unless `flat`, frozen ones may have another.
void require_uniform(const std::vector<FlatParamSlot>& slots, bool mixed_requires_grad, bool flat) {
  if (slots.empty()) {
    throw UsageError("Cannot construct a FlatParamHandle with an empty parameter list");
  }
  const FlatParamSlot& first = flat ? slots.front() : representative(slots);
  for (const FlatParamSlot& slot : slots) {
    const at::Tensor& parameter = slot.parameter;
    if (!parameter.is_floating_point()) {
      throw UsageError(fmt::format("Cannot flatten integer dtype tensors: '{}' is {}", slot.fqn,
                                   toString(parameter.scalar_type())));
    }
    const auto check = [&](const char* what, const std::string& seen, const std::string& other) {
      if (seen != other) {
        throw UsageError(
            fmt::format("Must flatten tensors with uniform {}: '{}' has {}, '{}' has {}", what,
                        first.fqn, seen, slot.fqn, other));
      }
    };
    if (flat || parameter.requires_grad()) {
      check("dtype", toString(first.parameter.scalar_type()), toString(parameter.scalar_type()));
    }
    check("device", first.parameter.device().str(), parameter.device().str());
    if (!mixed_requires_grad) {
      check("requires_grad", first.parameter.requires_grad() ? "true" : "false",
            parameter.requires_grad() ? "true" : "false");
    }
  }
}

// The slots, which are uniform.
std::vector<FlatParamSlot> uniform(std::vector<FlatParamSlot> slots,
                                   const FlatParamChoices& choices,
                                   plan::Layout layout) {
  require_uniform(slots, choices.mixed_requires_grad, layout == plan::Layout::kFlat);
  return slots;
}

}  // namespace

FlatShard::FlatShard(std::string unit,
                     std::vector<FlatParamSlot> slots,
                     plan::ShardLayout layout,
                     int64_t rank,
                     std::optional<at::ScalarType> param_dtype,
                     const FlatParamChoices& choices)
    : unit_(std::move(unit)),
      slots_(uniform(std::move(slots), choices, layout.layout())),
      layout_(std::move(layout)),
      rank_(rank),
      device_(choices.device.value_or(slots_.front().parameter.device())) {
  const at::NoGradGuard no_grad;
  std::vector<at::ScalarType> dtypes;
  for (const FlatParamSlot& slot : slots_) {
    frozen_.push_back(!slot.parameter.requires_grad());
    dtypes.push_back(slot.parameter.scalar_type());
  }
  requires_grad_ = std::ranges::count(frozen_, false) > 0;
  chunks_ = Chunks(layout_, dtypes, param_dtype, frozen_);
  whole_ = layout_.ranks() == 1 && !choices.offload &&
           std::ranges::all_of(
               dtypes, [&](at::ScalarType dtype) { return dtype == param_dtype.value_or(dtype); });

  deferred_ = choices.deferred && std::ranges::none_of(slots_, [](const FlatParamSlot& slot) {
                return slot.parameter.numel() > 0 && has_storage(slot.parameter);
              });
  // A deferred shard is not initialized: memory that is never written takes no pages.
  const at::TensorOptions stored =
      (choices.offload ? at::TensorOptions(at::kCPU).pinned_memory(!device_.is_cpu())
                       : at::TensorOptions(device_))
          .dtype(chunks_.stored.dtype());
  values_ = deferred_ ? at::empty({chunks_.stored.numel()}, stored)
                      : at::zeros({chunks_.stored.numel()}, stored);
  fill();
}

void FlatShard::free_deferred() {
  if (deferred_) {
    resize_storage(values_, 0);
  }
}

// Copies this rank's part of every parameter that has values, and makes the 1-D views.
void FlatShard::fill() {
  views_.reserve(slots_.size());
  for (size_t i = 0; i < slots_.size(); ++i) {
    const plan::ShardLayout::Slice slice = layout_.slice(rank_, i);
    const bool chunks = layout_.layout() == plan::Layout::kPerParameter;
    const at::Tensor around = chunks ? chunks_.stored.view(values_, i) : values_;
    const int64_t start = chunks || slice.numel == 0 ? 0 : slice.shard_offset;
    const at::Tensor view = around.narrow(0, start, slice.numel);
    const at::Tensor& parameter = slots_[i].parameter;
    if (slice.numel > 0 && has_storage(parameter)) {
      view.copy_(parameter.detach().reshape({-1}).narrow(0, slice.param_offset, slice.numel));
    }
    views_.push_back(view.detach());
  }
}

void FlatShard::rename(std::string unit, std::vector<std::string> fqns) {
  SHARDLENS_CHECK(fqns.size() == slots_.size(), "a name for every slot");
  unit_ = std::move(unit);
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].fqn = std::move(fqns[i]);
  }
}

bool FlatShard::is_mixed() const {
  return requires_grad_ && std::ranges::count(frozen_, true) > 0;
}

bool FlatShard::is_materialized() const {
  return has_storage(values_);
}

void FlatShard::materialize() {
  if (!is_materialized()) {
    const at::NoGradGuard no_grad;
    resize_storage(values_, values_.nbytes());
    values_.zero_();
  }
}

int64_t FlatShard::version() const {
  int64_t version = values_._version();
  for (const FlatParamSlot& slot : slots_) {
    version += slot.parameter._version();
  }
  return version;
}

at::Tensor FlatShard::own_part(const at::Tensor& given, size_t slot) const {
  const plan::ShardLayout::Slice slice = layout_.slice(rank_, slot);
  if (given.sizes() == at::IntArrayRef(slots_[slot].shape)) {
    return given.reshape({-1}).narrow(0, slice.numel == 0 ? 0 : slice.param_offset, slice.numel);
  }
  return given.dim() == 1 && given.numel() == slice.numel ? given : at::Tensor();
}

at::Tensor FlatShard::parameter_of(const at::Tensor& shards, size_t slot) const {
  return whole_of(shards, slot, chunks_.stored.start(slot), chunks_.stored.size(slot),
                  chunks_.stored.in_bytes());
}

at::Tensor FlatShard::gradient_of(const at::Tensor& gradients, size_t slot) const {
  return whole_of(gradients, slot, chunks_.grad_starts[slot], chunks_.numels[slot],
                  /*in_bytes=*/false);
}

at::Tensor FlatShard::whole_of(
    const at::Tensor& shards, size_t slot, int64_t start, int64_t size, bool in_bytes) const {
  const std::vector<int64_t>& shape = slots_[slot].shape;
  const int64_t numel = c10::multiply_integers(shape);
  if (layout_.layout() == plan::Layout::kFlat) {
    return shards.narrow(0, layout_.overlap(0, layout_.padded_numel(), slot).shard_offset, numel)
        .view(shape);
  }
  const at::Tensor chunks = shards.view({layout_.ranks(), -1}).narrow(1, start, size).reshape({-1});
  return (in_bytes ? chunks.view(views_[slot].scalar_type()) : chunks)
      .narrow(0, 0, numel)
      .view(shape);
}

void FlatShard::view_as(const std::vector<at::Tensor>& parameters) {
  for (size_t i = 0; i < slots_.size(); ++i) {
    views_[i] = parameters[i].flatten();
  }
}

}  // namespace shardlens::fsdp
