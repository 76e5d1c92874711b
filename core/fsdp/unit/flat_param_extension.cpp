// A FlatParamHandle whose all-gathers pass through an AllGatherExtension.
#include <utility>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "core/base/error.h"
#include "core/fsdp/unit/flat_param_handle.h"

namespace shardlens::fsdp {

ExtendedUnit FlatParamHandle::extended_unit() const {
  ExtendedUnit unit;
  unit.fqn = unit_;
  unit.ranks = layout_.ranks();
  unit.rank = rank_;
  unit.shard_numel = layout_.shard_numel();
  unit.param_dtype = unsharded_data_.scalar_type();
  for (size_t i = 0; i < slots_.size(); ++i) {
    ExtendedUnit::Parameter& parameter = unit.parameters.emplace_back();
    parameter.fqn = slots_[i].fqn;
    parameter.shape = slots_[i].shape;
    for (int64_t rank = 0; rank < layout_.ranks(); ++rank) {
      const plan::ShardLayout::Slice slice = layout_.slice(rank, i);
      parameter.in_shard.push_back({slice.shard_offset, slice.numel});
    }
  }
  return unit;
}

void FlatParamHandle::extend(const MakeAllGatherExtension& make) {
  if (!make || layout_.ranks() == 1) {
    return;
  }
  std::shared_ptr<AllGatherExtension> extension = make(extended_unit());
  if (extension == nullptr) {
    return;
  }
  const char* why = sub_mesh_ > 0 ? "has reshard_after_forward over a smaller mesh, which gathers "
                                    "what was gathered before"
                    : chunks_.stored.in_bytes() || chunks_.full.in_bytes()
                        ? "has parameters of several dtypes"
                        : nullptr;
  if (why != nullptr) {
    throw UsageError(
        fmt::format("unit '{}' {}; an all-gather extension cannot be used for it", unit_, why));
  }
  extension_ = std::move(extension);
}

void FlatParamHandle::copy_in_extended() {
  at::Tensor shard = shard_;
  if (shard.device() != unsharded_data_.device()) {
    shard = at::empty(shard_.sizes(), unsharded_data_.options().dtype(shard_.scalar_type()));
    shard.copy_(shard_, /*non_blocking=*/true);
  }
  const at::Tensor message = extension_->pre_all_gather(shard);
  if (!message.defined() || message.dim() != 1 || message.device() != shard.device()) {
    throw UsageError(fmt::format("unit '{}': pre_all_gather() should return a 1-D tensor on {}",
                                 unit_, shard.device().str()));
  }
  gathered_ = at::empty({message.numel() * layout_.ranks()}, message.options());
  own_slice(gathered_).copy_(message);
}

void FlatParamHandle::copy_out_extended() {
  const at::NoGradGuard no_grad;
  const int64_t ranks = layout_.ranks();
  const bool flat = layout_.layout() == plan::Layout::kFlat;
  // In layout flat the ranks' shards one after the other are the unsharded parameters.
  const at::Tensor shards =
      flat ? unsharded_data_
           : at::empty({chunks_.gathered.numel() * ranks}, unsharded_data_.options());
  extension_->post_all_gather(gathered_.view({ranks, -1}), shards.view({ranks, -1}));
  if (!flat) {
    copy_out(shards);
  }
}

}  // namespace shardlens::fsdp
