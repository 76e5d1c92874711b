#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/TensorBody.h>
#include <torch/csrc/autograd/edge.h>

#include "core/base/live_count.h"
#include "core/composable/autograd_node.h"
#include "core/fsdp/unit/flat_param_types.h"
#include "core/fsdp/unit/flat_shard.h"
#include "core/fsdp/unit/flat_views.h"
#include "core/fsdp/unit/reduction.h"
#include "core/fsdp/unit/shard_gradient.h"
#include "core/fsdp/unit/unsharded_storage.h"
#include "core/layout/shard_layout.h"

namespace shardlens::fsdp {

// One unit's parameters, as the modules see them: slices of a shard, or views of the unsharded flat
// parameter with their autograd edges.
//
// Layout      plan::ShardLayout; frozen parameters may have another dtype than the others: see
//             Packing. FlatShard has this rank's part, UnshardedStorage the memory of the unsharded
//             parameters, ShardGradient the reduced gradient, UnshardedGradients what autograd
//             brings; other classes do not depend on the layout.
// Ownership   the data of the modules' parameter tensors is changed in place; the tensors are never
//             replaced, so that modules, optimizers and autograd can keep them.
//             Queued work shares the ownership of the handle.
// Threads     the thread that trains, except for the gradient(): see ShardGradient.
// Source      torch/distributed/fsdp/_flat_param.py (FlatParamHandle with use_orig_params),
//             _fully_shard/_fsdp_param.py, torch 2.11.
class FlatParamHandle : public std::enable_shared_from_this<FlatParamHandle>,
                        LiveCount<FlatParamHandle> {
 public:
  using LiveCount::live;
  using Slot = FlatParamSlot;

  // If there is one rank, no cast and no offload, the unsharded parameter is the shard, and nothing
  // is ever freed. `param_dtype`: nullopt: each parameter's own.
  // Errors  UsageError if there are no parameters, if a parameter has an integer dtype, or if two
  //         parameters, which the message names, differ in device, requires_grad or dtype.
  FlatParamHandle(std::string unit,
                  std::vector<Slot> slots,
                  plan::ShardLayout layout,
                  int64_t rank,
                  std::optional<at::ScalarType> param_dtype,
                  at::ScalarType reduce_dtype,
                  const FlatParamChoices& choices = {});
  FlatParamHandle(const FlatParamHandle&) = delete;
  FlatParamHandle& operator=(const FlatParamHandle&) = delete;

  [[nodiscard]] const std::string& unit() const { return shard_.unit(); }
  // Other names, relative to another root.
  void rename(std::string unit, std::vector<std::string> fqns) {
    shard_.rename(std::move(unit), std::move(fqns));
  }
  [[nodiscard]] const plan::ShardLayout& layout() const { return shard_.layout(); }
  [[nodiscard]] const std::vector<Slot>& slots() const { return shard_.slots(); }
  [[nodiscard]] c10::Device device() const { return shard_.device(); }
  [[nodiscard]] bool requires_grad() const { return shard_.requires_grad(); }
  [[nodiscard]] bool is_mixed() const { return shard_.is_mixed(); }
  [[nodiscard]] bool is_frozen(size_t slot) const { return shard_.is_frozen(slot); }
  [[nodiscard]] std::string refrozen() const;  // FQN of one that changed since then, or ""
  [[nodiscard]] at::ScalarType reduce_dtype() const { return reduce_dtype_; }
  [[nodiscard]] const Reduction& reduction() const { return reduction_; }
  void set_reduction(const Reduction& reduction) { reduction_ = reduction; }
  // Parameters without a gradient are reduced as zeros.
  void reduce_unused();

  [[nodiscard]] FlatShard& shard() { return shard_; }
  [[nodiscard]] const FlatShard& shard() const { return shard_; }
  [[nodiscard]] UnshardedStorage& storage() { return storage_; }
  [[nodiscard]] const UnshardedStorage& storage() const { return storage_; }
  [[nodiscard]] ShardGradient& gradient() { return gradient_; }
  [[nodiscard]] const ShardGradient& gradient() const { return gradient_; }

  // Makes the autograd node of the views that later use_full() calls set. All gradients of the
  // parameters pass through it. `ended`: called in a backward after the node has run; may be empty.
  void make_views(std::function<void()> ended);
  [[nodiscard]] bool has_views() const { return edges_.front().is_valid(); }
  // Whether the current backward will still run the node of other views than those that just ended.
  [[nodiscard]] bool awaits_views() const;
  // Parameters become views of the unsharded parameter. `edges`: set the autograd edges of
  // make_views(), which saved tensors need in backward; false for a forward without gradients.
  void use_full(bool edges);
  void use_shard();  // parameters become leaves again: this rank's 1-D slices
  [[nodiscard]] bool is_full() const { return full_; }
  // use_full() if the parameters are unsharded, but another backward, or a forward without
  // gradients, has hidden them.
  void use_full_again();
  // Copies values that the user gave to parameters (set_data, torch::load; while they are
  // unsharded, also in place) to the shard. They may be those of the slice or, as in a checkpoint,
  // of the whole parameter.
  // Errors  UsageError naming the parameter if it has another dtype, device or number of elements.
  void adopt_user_values();

  // The scope FullParameters: parameters become leaves with the values of all ranks' shard() one
  // after the other, and show those of the shard's gradient (undefined: none).
  void summon(const at::Tensor& shards, const at::Tensor& gradients, bool to_cpu);
  // Slices again, with `writeback` of their parts. Errors: UsageError naming one of another shape.
  void end_summon(bool writeback);

  // The following are for a whole() shard, which the unsharded parameter then is:
  [[nodiscard]] const at::Tensor& unsharded() const { return unsharded_; }
  // Parameters become leaves in their own shapes that share the flat parameter's storage.
  void use_leaves();
  // Copies the values of leaves that got other storage (set_data, loading) to the flat parameter.
  void write_back_leaves();
  // Call after the flat parameter may have got other data, as by Module::to() and load().
  void follow();

  // Gradients. Hooks of grad_accumulator() run when a backward has computed all of them. They are
  // stored in unsharded_gradients() or, after let_gradients_through(), as the unsharded parameter's
  // gradient.
  [[nodiscard]] const composable::NodePointer& grad_accumulator() const;
  [[nodiscard]] UnshardedGradients& unsharded_gradients() { return *unsharded_gradients_; }
  void add_zero_gradients(const std::vector<bool>& of);  // by slot; as a backward adds gradients
  void let_gradients_through() { to_flat_ = true; }
  // "reduces gradients of 'a.weight'": those of the next reduction, to compare ranks.
  [[nodiscard]] std::string reduced_parameters() const;
  void drop_views();  // those of the last forward
  // FQN of a parameter to which the current backward brings a gradient of its slice, or "". This
  // happens if the parameter was used while it was sharded.
  [[nodiscard]] std::string stray_use() const;

 private:
  void make_full_views();
  void make_gradients();
  void repoint(size_t slot, const at::Tensor& data);
  void point_to_shard();
  void write_back(size_t slot);
  void adopt_value(size_t slot);
  void set_edge(size_t slot);

  FlatShard shard_;
  UnshardedStorage storage_{shard_};
  ShardGradient gradient_{shard_};
  at::ScalarType reduce_dtype_;
  Reduction reduction_;
  bool reduces_unused_ = false;
  bool differentiates_frozen_ = false;
  at::Tensor unsharded_;                // autograd leaf; parameters are views of it in forward
  std::vector<at::Tensor> full_views_;  // per slot, in its shape, without autograd: data of views
  std::vector<torch::autograd::Edge> edges_;  // per slot, from the last make_views()
  // Nodes of make_views() that still exist.
  std::vector<std::weak_ptr<const FlatViewsBackward>> made_;
  std::vector<int64_t> versions_;  // per slot: of the parameter, at the last use_full()
  std::shared_ptr<UnshardedGradients> unsharded_gradients_;
  bool to_flat_ = false;
  composable::NodePointer accumulator_;
  Summoned summoned_;
  bool full_ = false, with_edges_ = false;  // as the last use_full() left it
};

}  // namespace shardlens::fsdp
