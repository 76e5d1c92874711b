#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/TensorBody.h>
#include <torch/csrc/autograd/edge.h>

#include "core/base/live_count.h"
#include "core/fsdp/unit/all_gather_extension.h"
#include "core/fsdp/unit/flat_param_types.h"
#include "core/fsdp/unit/flat_views.h"
#include "core/fsdp/unit/packing.h"
#include "core/fsdp/unit/reduction.h"
#include "core/layout/shard_layout.h"

namespace torch::autograd {
struct Node;
}

namespace shardlens::fsdp {

// One unit's parameters in one 1-D tensor, split evenly over the shard axis.
//
// Layout      plan::ShardLayout. Per parameter, a shard is one chunk of every parameter, so the
//             ranks' shards one after the other (as all-gather and reduce-scatter have them) are
//             not the parameters one after the other. copy_out() converts the first to the second,
//             unsharded_gradients() arranges gradients as the first; other classes do not depend
//             on it. Frozen parameters may have another dtype than the others: see Packing.
// Shapes      shard [shard_numel] in the master dtype; unsharded [padded_numel] in param_dtype,
//             storage of 0 bytes while resharded.
// Ownership   the data of the modules' parameter tensors is changed in place; the tensors are never
//             replaced, so that modules, optimizers and autograd can keep them.
//             Queued work shares the ownership of the handle.
// Threads     store_grad(), updates() and forget_grad() on a communication thread, for which the
//             training thread waits before it reads the gradient; everything else on the training
//             thread.
// Source      torch/distributed/fsdp/_flat_param.py (FlatParamHandle with use_orig_params),
//             _fully_shard/_fsdp_param.py, torch 2.11.
class FlatParamHandle : public std::enable_shared_from_this<FlatParamHandle>,
                        LiveCount<FlatParamHandle> {
 public:
  using LiveCount::live;
  using Slot = FlatParamSlot;
  using Range = FlatParamRange;

  // whole() if there is one rank, no cast and no offload: the unsharded parameter is then the
  // shard, and nothing is ever freed. `param_dtype`: nullopt: each parameter's own.
  // Errors  UsageError if there are no parameters, if a parameter has an integer dtype, or if two
  //         parameters, which the message names, differ in device, requires_grad or dtype.
  FlatParamHandle(std::string unit,
                  std::vector<Slot> slots,
                  plan::ShardLayout layout,
                  int64_t rank,
                  std::optional<at::ScalarType> param_dtype,
                  at::ScalarType reduce_dtype,
                  FlatParamChoices choices = {});

  [[nodiscard]] const std::string& unit() const { return unit_; }
  // Other names, relative to another root.
  void rename(std::string unit, std::vector<std::string> fqns);
  [[nodiscard]] const plan::ShardLayout& layout() const { return layout_; }
  [[nodiscard]] const std::vector<Slot>& slots() const { return slots_; }
  [[nodiscard]] const at::Tensor& shard() const { return shard_; }
  [[nodiscard]] at::ScalarType reduce_dtype() const { return reduce_dtype_; }
  [[nodiscard]] const Reduction& reduction() const { return reduction_; }
  void set_reduction(const Reduction& reduction) { reduction_ = reduction; }
  [[nodiscard]] bool whole() const { return whole_; }
  // Of the unsharded parameters; with CPU offload the shard is on the host.
  [[nodiscard]] c10::Device device() const { return unsharded_data_.device(); }
  [[nodiscard]] bool requires_grad() const { return requires_grad_; }  // not all are frozen
  [[nodiscard]] bool is_mixed() const;  // some are frozen, others not
  [[nodiscard]] bool is_frozen(size_t slot) const { return frozen_[slot]; }
  [[nodiscard]] std::string refrozen() const;  // FQN of one that changed since then, or ""
  [[nodiscard]] bool is_materialized() const;
  void materialize();  // allocates the storage of a deferred shard, filled with zeros
  [[nodiscard]] at::Tensor slice(size_t slot) const { return shard_views_[slot]; }
  // In its shape, from all ranks' shard() one after the other; may be a view.
  [[nodiscard]] at::Tensor parameter_of(const at::Tensor& shards, size_t slot) const;

  // Storage, not initialized, of the unsharded parameters, and of the all-gather's output if that
  // is another tensor. Freed memory is returned, because a device may still use it.
  void allocate();
  c10::DataPtr free();
  void allocate_gathered();
  at::Tensor free_gathered();
  [[nodiscard]] int64_t unsharded_bytes() const;  // of both; 0 if whole()
  // reshard_after_forward = `ranks`: a larger shard over `ranks` neighbouring ranks, which the next
  // all-gather reads. allocate_sub_shard() does not initialize it.
  void set_sub_mesh(int64_t ranks) { sub_mesh_ = ranks; }
  [[nodiscard]] int64_t sub_mesh() const { return sub_mesh_; }  // 0: none
  void allocate_sub_shard();
  at::Tensor free_sub_shard();
  void fill_sub_shard();
  // Copies the shard (or sub-shard), cast to param_dtype, to this rank's slice of gather_output().
  // From the host, the current stream copies; the shard must not change before that.
  void copy_in();
  [[nodiscard]] at::Tensor gather_input(bool copied_in);
  // Has a version counter of its own, so that autograd does not see the writes.
  [[nodiscard]] const at::Tensor& gather_output() const {
    return gathered_.defined() ? gathered_ : unsharded_data_;
  }
  // Copies the all-gather's output to the unsharded parameters.
  void copy_out();
  // All-gathers between several ranks pass through what `make` returns, unless that is null.
  void extend(const MakeAllGatherExtension& make);
  [[nodiscard]] bool is_extended() const { return extension_ != nullptr; }

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
  // Whether what is unsharded, or the sub-shard, was gathered from values that the shard no longer
  // has: then reshard before the next use. values_written(): call it after writes that leave no
  // trace (at::Tensor::data(), as torch::optim::SGD writes), or may have been.
  [[nodiscard]] bool is_stale() const;
  void values_written() { written_ = true; }

  // The scope FullParameters: parameters become leaves with the values of all ranks' shard() one
  // after the other, and show those of the shard's gradient (undefined: none).
  void summon(const at::Tensor& shards, const at::Tensor& gradients, bool to_cpu);
  // Slices again, with `writeback` of their parts. Errors: UsageError naming one of another shape.
  void end_summon(bool writeback);

  // The following are for a whole() handle, whose unsharded parameter is the shard:
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
  [[nodiscard]] std::shared_ptr<torch::autograd::Node> grad_accumulator() const;
  [[nodiscard]] UnshardedGradients& unsharded_gradients() { return *gradients_; }
  void add_zero_gradients(const std::vector<bool>& slots);  // as a backward adds gradients
  void let_gradients_through() { to_flat_ = true; }
  // "reduces gradients of 'a.weight'": those of the next reduction, to compare ranks.
  [[nodiscard]] std::string reduced_parameters() const;
  // Makes `reduced`, cast to the master dtype, the shard's gradient, or adds it. `carried`: the
  // parameters in `reduced` (UnshardedGradients::carried()).
  void store_grad(const at::Tensor& reduced, const std::vector<bool>& carried);
  // A copy of `reduced`, cast to the gradient's dtype, in pinned memory of the host. The current
  // stream copies: its values are there when that has finished.
  [[nodiscard]] at::Tensor to_host(const at::Tensor& reduced) const;
  // Makes the shard's gradient follow what the user has done with the published gradients, or with
  // the shard's own: reset or assigned them, that of the slice or of the whole parameter. Returns
  // the slots whose gradient was reset. Errors: UsageError if one has another shape.
  std::vector<size_t> adopt_user_grads();
  // Publishes zeros for the set slots without a gradient, so that a reset is noticed.
  void publish_zeros(const std::vector<bool>& slots);
  // Of a slot in a shard that contains only the parameters in `carried`.
  [[nodiscard]] Range range_of(size_t slot, const std::vector<bool>& carried) const;
  // Sets each parameter's grad() to its slice of the shard's gradient. has_grads(): any has one.
  void publish_grads();
  [[nodiscard]] bool has_grads() const;
  void zero_grad();
  // The shard with its gradient; if only some parameters are frozen, the slices of the others that
  // have one. `first`: index of the unit's first shard in ShardedModel::flat_shards().
  [[nodiscard]] std::vector<ShardUpdate> updates(size_t first) const;
  void forget_grad();  // drops the shard's gradient, before it was published
  void drop_views();   // those of the last forward
  // FQN of a parameter to which the current backward brings a gradient of its slice, or "". This
  // happens if the parameter was used while it was sharded.
  [[nodiscard]] std::string stray_use() const;

 private:
  void fill_shard(int64_t rank);
  void make_full_views();
  void make_gradients();
  [[nodiscard]] int64_t gather_ranks() const;  // of the next all-gather
  [[nodiscard]] at::Tensor own_slice(const at::Tensor& gathered) const;
  void copy_out(const at::Tensor& gathered);
  void copy_out_by_operator(const at::Tensor& gathered);
  [[nodiscard]] ExtendedUnit extended_unit() const;
  void copy_in_extended();
  void copy_out_extended();
  void repoint(size_t slot, const at::Tensor& data);
  void point_to_shard();
  // This rank's part of `given`, which is the slice of a parameter or all of it. Undefined: it has
  // another number of elements.
  [[nodiscard]] at::Tensor own_part(const at::Tensor& given, size_t slot) const;
  [[nodiscard]] at::Tensor gradient_of(const at::Tensor& gradients, size_t slot) const;
  void write_back(size_t slot);
  void adopt_value(size_t slot);
  [[nodiscard]] int64_t value_version() const;  // increases when a parameter or the shard changes
  void note_gather();  // an all-gather is about to read the shard, unless there is a sub-shard
  [[nodiscard]] bool is_allocated() const;  // whether the unsharded parameters have storage
  void set_edge(size_t slot);
  [[nodiscard]] at::Tensor grad_slice(size_t slot) const;  // of the shard's gradient

  std::string unit_;
  std::vector<Slot> slots_;
  plan::ShardLayout layout_;
  int64_t rank_;
  at::ScalarType reduce_dtype_;
  Reduction reduction_;
  bool whole_ = false;
  bool requires_grad_ = true;  // whether the unsharded parameter requires grad
  bool differentiates_frozen_ = false;
  std::vector<bool> frozen_;       // per slot
  std::vector<bool> has_grad_;     // per slot: its part of the shard's gradient is not just zeros
  std::vector<at::Tensor> shown_;  // per slot: the gradient that was published, if any
  at::Tensor stored_;              // the shard's gradient, unless the user has replaced it
  std::vector<int64_t> versions_;  // per slot: of the parameter, at the last use_full()
  int64_t gathered_version_ = 0;   // value_version() of what the last all-gather read
  at::Tensor shard_;               // leaf with the master values; grad() is the reduced gradient
  at::Tensor unsharded_;           // autograd leaf; parameters are views of it in forward
  at::Tensor unsharded_data_;      // same storage, own version counter
  std::vector<at::Tensor> shard_views_;  // per slot, 1-D
  std::vector<at::Tensor> full_views_;   // per slot, in its shape, without autograd: data of views
  std::vector<torch::autograd::Edge> edges_;            // per slot, from the last make_views()
  std::vector<std::weak_ptr<FlatViewsBackward>> made_;  // nodes of make_views() that still exist
  Chunks chunks_;
  int64_t sub_mesh_ = 0;
  at::Tensor gathered_;   // all-gather's output before copy_out(); undefined: unsharded_ is used
  at::Tensor sub_shard_;  // undefined: the next all-gather reads the shard
  std::shared_ptr<AllGatherExtension> extension_;
  std::shared_ptr<UnshardedGradients> gradients_;
  bool to_flat_ = false;
  std::shared_ptr<torch::autograd::Node> accumulator_;
  bool written_ = false;  // values_written() was called since the last all-gather
  Summoned summoned_;
  bool full_ = false, with_edges_ = false;  // as the last use_full() left it
};

}  // namespace shardlens::fsdp
