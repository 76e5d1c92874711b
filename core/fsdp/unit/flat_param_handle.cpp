#include "core/fsdp/unit/flat_param_handle.h"

#include <algorithm>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "core/base/error.h"
#include "core/fsdp/unit/move_data.h"

namespace shardlens::fsdp {

namespace impl = torch::autograd::impl;

FlatParamHandle::FlatParamHandle(std::string unit,
                                 std::vector<Slot> slots,
                                 plan::ShardLayout layout,
                                 int64_t rank,
                                 std::optional<at::ScalarType> param_dtype,
                                 at::ScalarType reduce_dtype,
                                 const FlatParamChoices& choices)
    : shard_(std::move(unit), std::move(slots), std::move(layout), rank, param_dtype, choices),
      reduce_dtype_(reduce_dtype),
      differentiates_frozen_(choices.differentiates_frozen),
      edges_(shard_.slots().size()),
      versions_(shard_.slots().size()) {
  const at::NoGradGuard no_grad;
  const Chunks& chunks = shard_.chunks();
  // Bytes cannot be differentiated: the leaf is then an empty tensor of the trained dtype.
  unsharded_ = chunks.full.in_bytes()
                   ? storage_.data().narrow(0, 0, 0).view(chunks.grad_dtype).variable_data()
               : shard_.whole() ? shard_.values().detach()
                                : storage_.data().variable_data();
  unsharded_.set_requires_grad(requires_grad());
  accumulator_ = impl::grad_accumulator(unsharded_);
  make_gradients();
  make_full_views();
  storage_.free();  // last, because views cannot be made after the storage was freed
  point_to_shard();
  shard_.free_deferred();
}

std::string FlatParamHandle::refrozen() const {
  for (size_t i = 0; i < slots().size() && !full_; ++i) {
    if (slots()[i].parameter.requires_grad() == is_frozen(i)) {
      return slots()[i].fqn;
    }
  }
  return "";
}

// The layout is all ranks' shards one after the other, as a reduce-scatter reads them.
void FlatParamHandle::make_gradients() {
  std::vector<UnshardedGradients::Piece> pieces;
  for (const plan::ShardLayout::Piece& piece : layout().pieces()) {
    const bool padding = piece.parameter == plan::ShardLayout::kPadding;
    pieces.push_back({piece.numel, padding ? -1 : static_cast<int32_t>(piece.parameter)});
  }
  const bool chunks = layout().layout() == plan::Layout::kPerParameter;
  for (int64_t rank = 0; chunks && rank < layout().ranks(); ++rank) {
    for (size_t i = 0; i < slots().size(); ++i) {
      const plan::ShardLayout::Slice slice = layout().slice(rank, i);
      const auto chunk_of = static_cast<int32_t>(i);
      pieces.push_back({slice.numel, chunk_of, slice.param_offset, chunk_of});
      pieces.push_back({slice.padding, -1, 0, chunk_of});
    }
  }
  std::erase_if(pieces, [](const auto& piece) { return piece.numel == 0; });
  unsharded_gradients_ = std::make_shared<UnshardedGradients>(
      std::move(pieces), slots().size(), unsharded_.options(), layout().ranks());
  if (reduces_unused_) {
    reduce_unused();
  }
}

void FlatParamHandle::reduce_unused() {
  reduces_unused_ = true;
  std::vector<bool> trained;
  for (size_t i = 0; i < slots().size(); ++i) {
    trained.push_back(!is_frozen(i));
  }
  unsharded_gradients_->reduce_unused(std::move(trained));
}

void FlatParamHandle::make_full_views() {
  full_views_.clear();
  for (size_t i = 0; i < slots().size(); ++i) {
    full_views_.push_back(storage_.parameter(i));
  }
}

// [Note: Repointing a parameter] A gradient edge cannot be set on a leaf that requires grad. So
// this removes the edge and requires_grad and sets the new data; then the caller makes the
// parameter a view or a leaf. The tensor object stays the same, so the change is visible to all
// that share it.
void FlatParamHandle::repoint(size_t slot, const at::Tensor& data) {
  const at::Tensor& parameter = slots()[slot].parameter;
  impl::set_gradient_edge(parameter, torch::autograd::Edge());
  parameter.set_requires_grad(false);
  move_data(parameter, data);
}

void FlatParamHandle::make_views(std::function<void()> ended) {
  const auto node = composable::make_node<FlatViewsBackward>(
      unsharded_, full_views_, unsharded_gradients_, to_flat_, std::move(ended));
  for (size_t i = 0; i < slots().size(); ++i) {
    edges_[i] = {node, static_cast<uint32_t>(i)};
  }
  std::erase_if(made_, [](const auto& made) { return made.expired(); });
  made_.push_back(node->watch());
}

bool FlatParamHandle::awaits_views() const {
  return std::any_of(made_.begin(), made_.end(), [](const auto& made) {
    const auto node = made.lock();
    return node != nullptr && node->awaited();
  });
}

void FlatParamHandle::use_full(bool edges) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < slots().size(); ++i) {
    repoint(i, full_views_[i]);
    if (edges) {
      set_edge(i);
    }
    versions_[i] = slots()[i].parameter._version();
  }
  full_ = true;
  with_edges_ = edges;
}

void FlatParamHandle::set_edge(size_t slot) {
  if (edges_[slot].is_valid() && (differentiates_frozen_ || !is_frozen(slot))) {
    impl::set_gradient_edge(slots()[slot].parameter, edges_[slot]);
  }
}

void FlatParamHandle::use_full_again() {
  if (storage_.is_allocated() && !(full_ && with_edges_)) {
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
  for (size_t i = 0; i < slots().size(); ++i) {
    repoint(i, shard_.view(i));
    slots()[i].parameter.set_requires_grad(!is_frozen(i));
  }
  full_ = false;
}

void FlatParamHandle::use_leaves() {
  SHARDLENS_CHECK(shard_.whole(), "use_leaves() needs a flat parameter that is not sharded");
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < slots().size(); ++i) {
    repoint(i, full_views_[i]);
    slots()[i].parameter.set_requires_grad(!is_frozen(i));
  }
  full_ = true;
}

void FlatParamHandle::write_back_leaves() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < slots().size(); ++i) {
    const at::Tensor& parameter = slots()[i].parameter;
    if (!parameter.is_alias_of(storage_.data()) && parameter.sizes() == full_views_[i].sizes()) {
      full_views_[i].copy_(parameter);
    }
  }
}

void FlatParamHandle::follow() {
  SHARDLENS_CHECK(shard_.whole(), "only a flat parameter that is not sharded can move");
  if (unsharded_.is_alias_of(storage_.data())) {
    return;
  }
  const at::NoGradGuard no_grad;
  if (unsharded_.numel() != layout().padded_numel()) {
    throw UsageError(fmt::format("the flat parameter of {} elements was replaced by one of {}",
                                 layout().padded_numel(), unsharded_.numel()));
  }
  const at::Tensor values = unsharded_.variable_data();
  shard_.replace(values);
  storage_.follow();
  accumulator_ = impl::grad_accumulator(unsharded_);
  make_gradients();
  make_full_views();
  shard_.view_as(full_views_);
  drop_views();
}

void FlatParamHandle::drop_views() {
  for (torch::autograd::Edge& edge : edges_) {
    edge = {};
  }
}

const composable::NodePointer& FlatParamHandle::grad_accumulator() const {
  return accumulator_;
}

std::string FlatParamHandle::reduced_parameters() const {
  std::string names;
  for (size_t i = 0; i < slots().size(); ++i) {
    if (unsharded_gradients_->carried()[i]) {
      names += (names.empty() ? "'" : ", '") + slots()[i].fqn + "'";
    }
  }
  return "reduces gradients of " + names;
}

void FlatParamHandle::add_zero_gradients(const std::vector<bool>& of) {
  std::vector<at::Tensor> gradients(slots().size());
  for (size_t i = 0; i < slots().size(); ++i) {
    if (of[i]) {
      gradients[i] = at::zeros(slots()[i].shape, full_views_[i].options());
    }
  }
  unsharded_gradients_->add(std::move(gradients));
}

std::string FlatParamHandle::stray_use() const {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  for (size_t i = 0; i < slots().size() && nodes != nullptr; ++i) {
    const auto node = torch::autograd::impl::try_get_grad_accumulator(slots()[i].parameter);
    if (node != nullptr && nodes->contains(node.get())) {
      return slots()[i].fqn;
    }
  }
  return "";
}

}  // namespace shardlens::fsdp
