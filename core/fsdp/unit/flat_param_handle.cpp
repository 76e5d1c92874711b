#include "core/fsdp/unit/flat_param_handle.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/split_with_sizes_copy.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/variable.h>

#include "core/base/error.h"
#include "core/fsdp/unit/move_data.h"

namespace shardlens::fsdp {

namespace impl = torch::autograd::impl;

namespace {

bool has_storage(const at::Tensor& tensor) {
  return tensor.numel() == 0 || tensor.storage().nbytes() > 0;
}

// Like at::native::resize_bytes_cpu() and _cuda(), but without libtorch_cuda, which the latter
// needs. The new storage is uninitialised. Returns the old one.
c10::DataPtr resize_storage(const at::Tensor& tensor, size_t bytes) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  c10::DataPtr before = storage->set_data_ptr(bytes == 0 ? c10::DataPtr(nullptr, tensor.device())
                                                         : storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
  return before;
}

// The first trained parameter or, if all are frozen, the first.
const FlatParamHandle::Slot& representative(const std::vector<FlatParamHandle::Slot>& slots) {
  const auto trained = std::ranges::find_if(
      slots, [](const FlatParamHandle::Slot& each) { return each.parameter.requires_grad(); });
  return trained == slots.end() ? slots.front() : *trained;
}

// Checks that all parameters have the same device, the same requires_grad unless
// `mixed_requires_grad`, and the same dtype; unless `flat`, frozen ones may have another.
void require_uniform(const std::vector<FlatParamHandle::Slot>& slots,
                     bool mixed_requires_grad,
                     bool flat) {
  if (slots.empty()) {
    throw UsageError("Cannot construct a FlatParamHandle with an empty parameter list");
  }
  const FlatParamHandle::Slot& first = flat ? slots.front() : representative(slots);
  for (const FlatParamHandle::Slot& slot : slots) {
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

}  // namespace

FlatParamHandle::FlatParamHandle(std::string unit,
                                 std::vector<Slot> slots,
                                 plan::ShardLayout layout,
                                 int64_t rank,
                                 std::optional<at::ScalarType> param_dtype,
                                 at::ScalarType reduce_dtype,
                                 FlatParamChoices choices)
    : unit_(std::move(unit)),
      slots_(std::move(slots)),
      layout_(std::move(layout)),
      rank_(rank),
      reduce_dtype_(reduce_dtype) {
  require_uniform(slots_, choices.mixed_requires_grad, layout_.layout() == plan::Layout::kFlat);
  const at::NoGradGuard no_grad;
  const bool offloaded = choices.offload;
  const c10::Device device = choices.device.value_or(slots_.front().parameter.device());
  const at::TensorOptions options = at::TensorOptions().device(device);
  for (const Slot& slot : slots_) {
    frozen_.push_back(!slot.parameter.requires_grad());
  }
  requires_grad_ = std::ranges::count(frozen_, false) > 0;
  differentiates_frozen_ = choices.differentiates_frozen;
  has_grad_.assign(slots_.size(), false);
  shown_.resize(slots_.size());
  versions_.resize(slots_.size());
  std::vector<at::ScalarType> dtypes;
  for (const Slot& slot : slots_) {
    dtypes.push_back(slot.parameter.scalar_type());
  }
  chunks_ = Chunks(layout_, dtypes, param_dtype, frozen_);
  whole_ = layout_.ranks() == 1 && !offloaded &&
           std::ranges::all_of(
               dtypes, [&](at::ScalarType dtype) { return dtype == param_dtype.value_or(dtype); });

  const bool deferred =
      choices.deferred && std::none_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
        return slot.parameter.numel() > 0 && has_storage(slot.parameter);
      });
  // A deferred shard is not initialized: memory that is never written takes no pages.
  const at::TensorOptions stored =
      (offloaded ? at::TensorOptions(at::kCPU).pinned_memory(!device.is_cpu()) : options)
          .dtype(chunks_.stored.dtype());
  shard_ = deferred ? at::empty({chunks_.stored.numel()}, stored)
                    : at::zeros({chunks_.stored.numel()}, stored);
  fill_shard(rank);
  unsharded_data_ =
      whole_ ? shard_ : at::empty({chunks_.full.numel()}, options.dtype(chunks_.full.dtype()));
  // Bytes cannot be differentiated: the leaf is then an empty tensor of the trained dtype.
  unsharded_ = chunks_.full.in_bytes()
                   ? unsharded_data_.narrow(0, 0, 0).view(chunks_.grad_dtype).variable_data()
               : whole_ ? shard_.detach()
                        : unsharded_data_.variable_data();
  unsharded_.set_requires_grad(requires_grad_);
  accumulator_ = impl::grad_accumulator(unsharded_);
  make_gradients();
  make_full_views();
  free();  // last, because views cannot be made after the storage was freed
  edges_.resize(slots_.size());
  point_to_shard();
  if (deferred) {
    resize_storage(shard_, 0);
  }
}

std::string FlatParamHandle::refrozen() const {
  for (size_t i = 0; i < slots_.size() && !full_; ++i) {
    if (slots_[i].parameter.requires_grad() == frozen_[i]) {
      return slots_[i].fqn;
    }
  }
  return "";
}

bool FlatParamHandle::is_mixed() const {
  return requires_grad_ && std::ranges::count(frozen_, true) > 0;
}

bool FlatParamHandle::is_materialized() const {
  return has_storage(shard_);
}

void FlatParamHandle::materialize() {
  if (!is_materialized()) {
    const at::NoGradGuard no_grad;
    resize_storage(shard_, shard_.nbytes());
    shard_.zero_();
  }
}

void FlatParamHandle::rename(std::string unit, std::vector<std::string> fqns) {
  SHARDLENS_CHECK(fqns.size() == slots_.size(), "a name for every slot");
  unit_ = std::move(unit);
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].fqn = std::move(fqns[i]);
  }
}

// The layout is all ranks' shards one after the other, as a reduce-scatter reads them.
void FlatParamHandle::make_gradients() {
  std::vector<UnshardedGradients::Piece> pieces;
  for (const plan::ShardLayout::Piece& piece : layout_.pieces()) {
    const bool padding = piece.parameter == plan::ShardLayout::kPadding;
    pieces.push_back({piece.numel, padding ? -1 : static_cast<int32_t>(piece.parameter)});
  }
  const bool chunks = layout_.layout() == plan::Layout::kPerParameter;
  for (int64_t rank = 0; chunks && rank < layout_.ranks(); ++rank) {
    for (size_t i = 0; i < slots_.size(); ++i) {
      const plan::ShardLayout::Slice slice = layout_.slice(rank, i);
      const auto chunk_of = static_cast<int32_t>(i);
      pieces.push_back({slice.numel, chunk_of, slice.param_offset, chunk_of});
      pieces.push_back({slice.padding, -1, 0, chunk_of});
    }
  }
  std::erase_if(pieces, [](const auto& piece) { return piece.numel == 0; });
  gradients_ = std::make_shared<UnshardedGradients>(std::move(pieces), slots_.size(),
                                                    unsharded_.options(), layout_.ranks());
}

void FlatParamHandle::make_full_views() {
  full_views_.clear();
  for (size_t i = 0; i < slots_.size(); ++i) {
    // An unsharded parameter is contiguous: its chunks one after the other, or its range in the
    // flat layout.
    const std::vector<int64_t>& shape = slots_[i].shape;
    const int64_t numel = c10::multiply_integers(shape);
    const at::Tensor full =
        layout_.layout() == plan::Layout::kPerParameter
            ? chunks_.full.view(unsharded_data_, i).narrow(0, 0, numel)
            : unsharded_data_.narrow(0, layout_.overlap(0, layout_.padded_numel(), i).shard_offset,
                                     numel);
    full_views_.push_back(full.view(shape));
  }
}

// Copies this rank's part of every parameter that has values, and makes the 1-D views.
void FlatParamHandle::fill_shard(int64_t rank) {
  shard_views_.reserve(slots_.size());
  for (size_t i = 0; i < slots_.size(); ++i) {
    const plan::ShardLayout::Slice slice = layout_.slice(rank, i);
    const bool chunks = layout_.layout() == plan::Layout::kPerParameter;
    const at::Tensor around = chunks ? chunks_.stored.view(shard_, i) : shard_;
    const int64_t start = chunks || slice.numel == 0 ? 0 : slice.shard_offset;
    const at::Tensor view = around.narrow(0, start, slice.numel);
    const at::Tensor& parameter = slots_[i].parameter;
    if (slice.numel > 0 && has_storage(parameter)) {
      view.copy_(parameter.detach().reshape({-1}).narrow(0, slice.param_offset, slice.numel));
    }
    shard_views_.push_back(view.detach());
  }
}

void FlatParamHandle::allocate() {
  if (!whole_) {
    resize_storage(unsharded_, unsharded_data_.nbytes());
  }
}

c10::DataPtr FlatParamHandle::free() {
  return whole_ ? c10::DataPtr() : resize_storage(unsharded_, 0);
}

void FlatParamHandle::allocate_gathered() {
  if (extension_ != nullptr) {
    return;  // its size is known when copy_in() has the message
  }
  gathered_ = at::empty({chunks_.gathered.numel() * layout_.ranks()}, unsharded_data_.options());
}

at::Tensor FlatParamHandle::free_gathered() {
  return std::exchange(gathered_, at::Tensor());
}

int64_t FlatParamHandle::unsharded_bytes() const {
  return (whole_ ? 0 : static_cast<int64_t>(unsharded_.storage().nbytes())) +
         (gathered_.defined() ? static_cast<int64_t>(gathered_.nbytes()) : 0);
}

void FlatParamHandle::allocate_sub_shard() {
  sub_shard_ = at::empty({chunks_.gathered.numel() * layout_.ranks() / sub_mesh_},
                         unsharded_data_.options());
}

at::Tensor FlatParamHandle::free_sub_shard() {
  return std::exchange(sub_shard_, at::Tensor());
}

void FlatParamHandle::fill_sub_shard() {
  const at::NoGradGuard no_grad;
  int64_t to = 0;
  for (size_t i = 0; i < chunks_.numels.size(); ++i) {
    const int64_t part = chunks_.full.size(i) / sub_mesh_;
    const at::Tensor whole = chunks_.full.range(unsharded_data_, i);
    sub_shard_.narrow(0, to, part).copy_(whole.narrow(0, rank_ % sub_mesh_ * part, part));
    to += part;
  }
}

int64_t FlatParamHandle::gather_ranks() const {
  return sub_shard_.defined() ? sub_mesh_ : layout_.ranks();
}

at::Tensor FlatParamHandle::own_slice(const at::Tensor& gathered) const {
  const int64_t numel = gathered.numel() / gather_ranks();
  return gathered.narrow(0, rank_ % gather_ranks() * numel, numel);
}

void FlatParamHandle::copy_in() {
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
  const bool casts = chunks_.stored.in_bytes() || shard_.scalar_type() != own.scalar_type();
  at::Tensor shard = shard_;
  if (casts && shard_.device() != own.device()) {
    // The device casts, as in PyTorch: if the host did, it would have to wait for the copy.
    shard = at::empty(shard_.sizes(), own.options().dtype(shard_.scalar_type()));
    shard.copy_(shard_, /*non_blocking=*/true);
  }
  if (!chunks_.stored.in_bytes()) {
    own.copy_(shard, /*non_blocking=*/true);
    return;
  }
  // Casts chunks of different dtypes to one, or copies the bytes of all.
  std::vector<at::Tensor> to, from;
  for (size_t i = 0; i < chunks_.numels.size(); ++i) {
    to.push_back(chunks_.gathered.range(own, i));
    from.push_back(chunks_.gathered.in_bytes() ? chunks_.stored.range(shard, i)
                                               : chunks_.stored.view(shard, i));
  }
  at::_foreach_copy_(to, from);
}

at::Tensor FlatParamHandle::gather_input(bool copied_in) {
  if (!copied_in) {
    note_gather();
  }
  return copied_in ? own_slice(gather_output()) : sub_shard_.defined() ? sub_shard_ : shard_;
}

void FlatParamHandle::copy_out() {
  SHARDLENS_CHECK(gathered_.defined(), "copy-out without an all-gather's output");
  if (extension_ != nullptr) {
    return copy_out_extended();
  }
  copy_out(gathered_);
}

void FlatParamHandle::copy_out(const at::Tensor& gathered) {
  at::RecordFunction record(at::RecordScope::FUNCTION);
  if (record.isActive()) {
    record.before("fsdp::split_with_sizes_copy");
  }
  if (!gathered.is_cpu()) {
    return copy_out_by_operator(gathered);
  }
  // Copies bytes with memcpy: an operator call per chunk would cost more than the copy.
  const auto item = static_cast<int64_t>(gathered.element_size());
  const int64_t ranks = gather_ranks();
  const int64_t row = gathered.numel() / ranks * item;
  const auto* from = static_cast<const std::byte*>(gathered.const_data_ptr());
  auto* all = static_cast<std::byte*>(unsharded_data_.data_ptr());
  for (size_t i = 0; i < chunks_.numels.size(); ++i) {
    const int64_t width = chunks_.full.size(i) / ranks * item;
    std::byte* to = all + chunks_.full.start(i) * item;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      std::memcpy(to, from + rank * row, static_cast<size_t>(width));
      to += width;
    }
    from += width;
  }
}

// One kernel for all chunks, as in PyTorch.
void FlatParamHandle::copy_out_by_operator(const at::Tensor& gathered) {
  const at::NoGradGuard no_grad;
  const int64_t ranks = gather_ranks();
  std::vector<int64_t> sizes;
  std::vector<at::Tensor> targets;
  for (size_t i = 0; i < chunks_.numels.size(); ++i) {
    sizes.push_back(chunks_.full.size(i) / ranks);
    targets.push_back(chunks_.full.range(unsharded_data_, i).view({ranks, -1}));
  }
  at::split_with_sizes_copy_out(targets, gathered.view({ranks, -1}), sizes, 1);
}

at::Tensor FlatParamHandle::parameter_of(const at::Tensor& shards, size_t slot) const {
  const std::vector<int64_t>& shape = slots_[slot].shape;
  const int64_t numel = c10::multiply_integers(shape);
  if (layout_.layout() == plan::Layout::kFlat) {
    return shards.narrow(0, full_views_[slot].storage_offset(), numel).view(shape);
  }
  const at::Tensor chunks = shards.view({layout_.ranks(), -1})
                                .narrow(1, chunks_.stored.start(slot), chunks_.stored.size(slot))
                                .reshape({-1});
  return (chunks_.stored.in_bytes() ? chunks.view(shard_views_[slot].scalar_type()) : chunks)
      .narrow(0, 0, numel)
      .view(shape);
}

// [Note: Repointing a parameter] A gradient edge cannot be set on a leaf that requires grad. So
// this removes the edge and requires_grad and sets the new data; then the caller makes the
// parameter a view or a leaf. The tensor object stays the same, so the change is visible to all
// that share it.
void FlatParamHandle::repoint(size_t slot, const at::Tensor& data) {
  at::Tensor& parameter = slots_[slot].parameter;
  impl::set_gradient_edge(parameter, torch::autograd::Edge());
  parameter.set_requires_grad(false);
  move_data(parameter, data);
}

void FlatParamHandle::make_views(std::function<void()> ended) {
  const auto node = std::make_shared<FlatViewsBackward>(unsharded_, full_views_, gradients_,
                                                        to_flat_, std::move(ended));
  for (size_t i = 0; i < slots_.size(); ++i) {
    edges_[i] = {node, static_cast<uint32_t>(i)};
  }
  std::erase_if(made_, [](const auto& made) { return made.expired(); });
  made_.push_back(node);
}

bool FlatParamHandle::awaits_views() const {
  return std::any_of(made_.begin(), made_.end(), [](const auto& made) {
    const auto node = made.lock();
    return node != nullptr && node->awaited();
  });
}

void FlatParamHandle::use_full(bool edges) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < slots_.size(); ++i) {
    repoint(i, full_views_[i]);
    if (edges) {
      set_edge(i);
    }
    versions_[i] = slots_[i].parameter._version();
  }
  full_ = true;
  with_edges_ = edges;
}

void FlatParamHandle::set_edge(size_t slot) {
  if (edges_[slot].is_valid() && (differentiates_frozen_ || !frozen_[slot])) {
    impl::set_gradient_edge(slots_[slot].parameter, edges_[slot]);
  }
}

bool FlatParamHandle::is_allocated() const {
  return whole_ || unsharded_.storage().nbytes() > 0;
}

void FlatParamHandle::use_full_again() {
  if (is_allocated() && !(full_ && with_edges_)) {
    use_full(true);
  }
}

void FlatParamHandle::use_shard() {
  if (!full_) {
    return;
  }
  adopt_user_values();
  point_to_shard();
}

void FlatParamHandle::point_to_shard() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < slots_.size(); ++i) {
    repoint(i, shard_views_[i]);
    slots_[i].parameter.set_requires_grad(!frozen_[i]);
  }
  full_ = false;
}

void FlatParamHandle::use_leaves() {
  SHARDLENS_CHECK(whole_, "use_leaves() needs a flat parameter that is not sharded");
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < slots_.size(); ++i) {
    repoint(i, full_views_[i]);
    slots_[i].parameter.set_requires_grad(!frozen_[i]);
  }
  full_ = true;
}

void FlatParamHandle::write_back_leaves() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const at::Tensor& parameter = slots_[i].parameter;
    if (!parameter.is_alias_of(unsharded_data_) && parameter.sizes() == full_views_[i].sizes()) {
      full_views_[i].copy_(parameter);
    }
  }
}

void FlatParamHandle::follow() {
  SHARDLENS_CHECK(whole_, "only a flat parameter that is not sharded can move");
  if (unsharded_.is_alias_of(unsharded_data_)) {
    return;
  }
  const at::NoGradGuard no_grad;
  if (unsharded_.numel() != layout_.padded_numel()) {
    throw UsageError(fmt::format("the flat parameter of {} elements was replaced by one of {}",
                                 layout_.padded_numel(), unsharded_.numel()));
  }
  shard_ = unsharded_.variable_data();
  unsharded_data_ = shard_;
  accumulator_ = impl::grad_accumulator(unsharded_);
  make_gradients();
  make_full_views();
  for (size_t i = 0; i < slots_.size(); ++i) {
    shard_views_[i] = full_views_[i].flatten();
  }
  drop_views();
}

void FlatParamHandle::drop_views() {
  for (torch::autograd::Edge& edge : edges_) {
    edge = {};
  }
}

std::shared_ptr<torch::autograd::Node> FlatParamHandle::grad_accumulator() const {
  return accumulator_;
}

}  // namespace shardlens::fsdp
