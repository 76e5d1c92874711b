#include "core/fsdp/unit/unsharded_storage.h"

#include <cstring>
#include <utility>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/split_with_sizes_copy.h>
#include <ATen/record_function.h>
#include <c10/util/accumulate.h>

#include "core/base/error.h"
#include "core/fsdp/unit/tensor_storage.h"

namespace shardlens::fsdp {
namespace {

// Recorded as PyTorch's operator, whose time it is.
class CopyOutRecord {
 public:
  CopyOutRecord() {
    if (record_.isActive()) {
      record_.before("fsdp::split_with_sizes_copy");
    }
  }

 private:
  at::RecordFunction record_{at::RecordScope::FUNCTION};
};

}  // namespace

UnshardedStorage::UnshardedStorage(FlatShard& shard)
    : shard_(shard),
      data_(shard.whole()
                ? shard.values()
                : at::empty({shard.chunks().full.numel()},
                            at::TensorOptions(shard.device()).dtype(shard.chunks().full.dtype()))) {
}

// An unsharded parameter is contiguous: its chunks one after the other, or its range in the flat
// layout.
at::Tensor UnshardedStorage::parameter(size_t slot) const {
  const std::vector<int64_t>& shape = shard_.slots()[slot].shape;
  const int64_t numel = c10::multiply_integers(shape);
  const plan::ShardLayout& layout = shard_.layout();
  return (layout.layout() == plan::Layout::kPerParameter
              ? shard_.chunks().full.view(data_, slot).narrow(0, 0, numel)
              : data_.narrow(0, layout.overlap(0, layout.padded_numel(), slot).shard_offset, numel))
      .view(shape);
}

bool UnshardedStorage::is_allocated() const {
  return shard_.whole() || (allocated_ && data_.storage().nbytes() > 0);
}

void UnshardedStorage::note_gather() {
  if (!sub_shard_.defined()) {
    gathered_version_ = shard_.version();
    written_ = false;
  }
}

bool UnshardedStorage::is_stale() const {
  return !shard_.whole() && (is_allocated() || gathered_.defined() || sub_shard_.defined()) &&
         (written_ || shard_.version() != gathered_version_);
}

void UnshardedStorage::allocate() {
  allocated_ = true;
  if (!shard_.whole() && !has_storage(data_)) {
    resize_storage(data_, data_.nbytes());
  }
}

c10::DataPtr UnshardedStorage::free() {
  allocated_ = false;
  return shard_.whole() || keeps_ ? c10::DataPtr() : resize_storage(data_, 0);
}

void UnshardedStorage::allocate_gathered() {
  if (extension_ != nullptr) {
    return;  // its size is known when copy_in() has the message
  }
  in_place_ = false;
  gathered_ =
      at::empty({shard_.chunks().gathered.numel() * shard_.layout().ranks()}, data_.options());
}

at::Tensor UnshardedStorage::free_gathered() {
  return std::exchange(gathered_, at::Tensor());
}

int64_t UnshardedStorage::bytes() const {
  return (shard_.whole() ? 0 : static_cast<int64_t>(data_.storage().nbytes())) +
         (gathered_.defined() ? static_cast<int64_t>(gathered_.nbytes()) : 0);
}

void UnshardedStorage::allocate_sub_shard() {
  sub_shard_ = at::empty({shard_.chunks().gathered.numel() * shard_.layout().ranks() / sub_mesh_},
                         data_.options());
}

at::Tensor UnshardedStorage::free_sub_shard() {
  return std::exchange(sub_shard_, at::Tensor());
}

void UnshardedStorage::fill_sub_shard() {
  const at::NoGradGuard no_grad;
  int64_t to = 0;
  for (size_t i = 0; i < shard_.chunks().numels.size(); ++i) {
    const int64_t part = shard_.chunks().full.size(i) / sub_mesh_;
    const at::Tensor whole = shard_.chunks().full.range(data_, i);
    sub_shard_.narrow(0, to, part).copy_(whole.narrow(0, shard_.rank() % sub_mesh_ * part, part));
    to += part;
  }
}

int64_t UnshardedStorage::gather_ranks() const {
  return sub_shard_.defined() ? sub_mesh_ : shard_.layout().ranks();
}

at::Tensor UnshardedStorage::own_slice(const at::Tensor& gathered) const {
  const int64_t numel = gathered.numel() / gather_ranks();
  return gathered.narrow(0, shard_.rank() % gather_ranks() * numel, numel);
}

void UnshardedStorage::copy_in() {
  const at::NoGradGuard no_grad;
  note_gather();
  if (extension_ != nullptr) {
    return copy_in_extended();
  }
  const at::Tensor own = own_slice(gather_output());
  if (sub_shard_.defined()) {
    own.copy_(sub_shard_);
    return;
  }
  const at::Tensor& values = shard_.values();
  const bool casts = shard_.chunks().stored.in_bytes() || values.scalar_type() != own.scalar_type();
  at::Tensor shard = values;
  if (casts && values.device() != own.device()) {
    // The device casts, as in PyTorch: if the host did, it would have to wait for the copy.
    shard = at::empty(values.sizes(), own.options().dtype(values.scalar_type()));
    shard.copy_(values, /*non_blocking=*/true);
  }
  if (!shard_.chunks().stored.in_bytes()) {
    own.copy_(shard, /*non_blocking=*/true);
    return;
  }
  // Casts chunks of different dtypes to one, or copies the bytes of all.
  std::vector<at::Tensor> to, from;
  for (size_t i = 0; i < shard_.chunks().numels.size(); ++i) {
    to.push_back(shard_.chunks().gathered.range(own, i));
    from.push_back(shard_.chunks().gathered.in_bytes() ? shard_.chunks().stored.range(shard, i)
                                                       : shard_.chunks().stored.view(shard, i));
  }
  at::_foreach_copy_(to, from);
}

at::Tensor UnshardedStorage::gather_input(bool copied_in) {
  if (!copied_in) {
    note_gather();
  }
  return copied_in              ? own_slice(gather_output())
         : sub_shard_.defined() ? sub_shard_
                                : shard_.values();
}

bool UnshardedStorage::can_gather_parts() const {
  const Chunks& chunks = shard_.chunks();
  return gathered_.defined() && gathered_.is_cpu() && shard_.values().is_cpu() && !keeps_ &&
         extension_ == nullptr && !sub_shard_.defined() && !chunks.stored.in_bytes() &&
         chunks.stored.dtype() == gathered_.scalar_type() &&
         chunks.full.numel() == gathered_.numel();
}

UnshardedStorage::PartsInput UnshardedStorage::gather_parts_input() {
  note_gather();
  in_place_ = true;
  return {shard_.values(), shard_.chunks().numels};
}

void UnshardedStorage::copy_out() {
  SHARDLENS_CHECK(gathered_.defined(), "copy-out without an all-gather's output");
  if (in_place_) {
    const CopyOutRecord record;
    return swap_storage(data_, gathered_);
  }
  if (extension_ != nullptr) {
    return copy_out_extended();
  }
  copy_out(gathered_);
}

void UnshardedStorage::copy_out(const at::Tensor& gathered) {
  const CopyOutRecord record;
  if (!gathered.is_cpu()) {
    return copy_out_by_operator(gathered);
  }
  // Copies bytes with memcpy: an operator call per chunk would cost more than the copy.
  const auto item = static_cast<int64_t>(gathered.element_size());
  const int64_t ranks = gather_ranks();
  const int64_t row = gathered.numel() / ranks * item;
  const auto* from = static_cast<const std::byte*>(gathered.const_data_ptr());
  auto* all = static_cast<std::byte*>(data_.data_ptr());
  for (size_t i = 0; i < shard_.chunks().numels.size(); ++i) {
    const int64_t width = shard_.chunks().full.size(i) / ranks * item;
    std::byte* to = all + shard_.chunks().full.start(i) * item;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      std::memcpy(to, from + rank * row, static_cast<size_t>(width));
      to += width;
    }
    from += width;
  }
}

// One kernel for all chunks, as in PyTorch.
void UnshardedStorage::copy_out_by_operator(const at::Tensor& gathered) {
  const at::NoGradGuard no_grad;
  const int64_t ranks = gather_ranks();
  std::vector<int64_t> sizes;
  std::vector<at::Tensor> targets;
  for (size_t i = 0; i < shard_.chunks().numels.size(); ++i) {
    sizes.push_back(shard_.chunks().full.size(i) / ranks);
    targets.push_back(shard_.chunks().full.range(data_, i).view({ranks, -1}));
  }
  at::split_with_sizes_copy_out(targets, gathered.view({ranks, -1}), sizes, 1);
}

ExtendedUnit UnshardedStorage::extended_unit() const {
  ExtendedUnit unit;
  unit.fqn = shard_.unit();
  unit.ranks = shard_.layout().ranks();
  unit.rank = shard_.rank();
  unit.shard_numel = shard_.layout().shard_numel();
  unit.param_dtype = data_.scalar_type();
  for (size_t i = 0; i < shard_.slots().size(); ++i) {
    ExtendedUnit::Parameter& parameter = unit.parameters.emplace_back();
    parameter.fqn = shard_.slots()[i].fqn;
    parameter.shape = shard_.slots()[i].shape;
    for (int64_t rank = 0; rank < shard_.layout().ranks(); ++rank) {
      const plan::ShardLayout::Slice slice = shard_.layout().slice(rank, i);
      parameter.in_shard.push_back({slice.shard_offset, slice.numel});
    }
  }
  return unit;
}

void UnshardedStorage::extend(const MakeAllGatherExtension& make) {
  if (!make || shard_.layout().ranks() == 1) {
    return;
  }
  std::shared_ptr<AllGatherExtension> extension = make(extended_unit());
  if (extension == nullptr) {
    return;
  }
  const char* why = sub_mesh_ > 0 ? "has reshard_after_forward over a smaller mesh, which gathers "
                                    "what was gathered before"
                    : shard_.chunks().stored.in_bytes() || shard_.chunks().full.in_bytes()
                        ? "has parameters of several dtypes"
                        : nullptr;
  if (why != nullptr) {
    throw UsageError(fmt::format("unit '{}' {}; an all-gather extension cannot be used for it",
                                 shard_.unit(), why));
  }
  extension_ = std::move(extension);
}

void UnshardedStorage::copy_in_extended() {
  at::Tensor shard = shard_.values();
  if (shard.device() != data_.device()) {
    shard = at::empty(shard.sizes(), data_.options().dtype(shard.scalar_type()));
    shard.copy_(shard_.values(), /*non_blocking=*/true);
  }
  const at::Tensor message = extension_->pre_all_gather(shard);
  if (!message.defined() || message.dim() != 1 || message.device() != shard.device()) {
    throw UsageError(fmt::format("unit '{}': pre_all_gather() should return a 1-D tensor on {}",
                                 shard_.unit(), shard.device().str()));
  }
  gathered_ = at::empty({message.numel() * shard_.layout().ranks()}, message.options());
  own_slice(gathered_).copy_(message);
}

void UnshardedStorage::copy_out_extended() {
  const at::NoGradGuard no_grad;
  const int64_t ranks = shard_.layout().ranks();
  const bool flat = shard_.layout().layout() == plan::Layout::kFlat;
  // In layout flat the ranks' shards one after the other are the unsharded parameters.
  const at::Tensor shards =
      flat ? data_ : at::empty({shard_.chunks().gathered.numel() * ranks}, data_.options());
  extension_->post_all_gather(gathered_.view({ranks, -1}), shards.view({ranks, -1}));
  if (!flat) {
    copy_out(shards);
  }
}

}  // namespace shardlens::fsdp
