#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/TensorBody.h>
#include <torch/csrc/autograd/edge.h>

#include "core/base/live_count.h"
#include "core/fsdp/flat_views.h"
#include "core/fsdp/reduction.h"
#include "core/plan/shard_layout.h"

namespace torch::autograd {
struct Node;
}

namespace shardlens::fsdp {

struct FlatParamChoices {
  // Some parameters may be frozen: they are gathered with the others and have no gradient.
  bool mixed_requires_grad = false;
  // Frozen ones among others are in the graph too, and their gradients are thrown away: FSDP1.
  bool differentiates_frozen = false;
  // The shard has no storage either, while its parameters have none, until materialize().
  bool deferred = false;
};

// One unit's parameters in one 1-D tensor, split evenly over the shard axis.
//
// Layout      plan::ShardLayout. Flat: [p0 | padding | p1 | … | end padding]; rank r holds
//             [r·shard_numel, (r+1)·shard_numel). Per parameter: a shard is one chunk of every
//             parameter, so ranks' shards side by side (what an all-gather writes and a
//             reduce-scatter reads) are not the parameters side by side (what modules use);
//             copy_out() turns the one into the other, and unsharded_gradients() lays gradients out
//             as the reduce-scatter reads them. Only this class knows.
// Shapes      shard [shard_numel] in the master dtype; unsharded [padded_numel] in param_dtype,
//             storage of 0 bytes while resharded.
// Ownership   the module's parameter tensors are repointed in place, never replaced: modules,
//             optimizers and autograd keep them.
// Threads     store_grad() on a communication thread, after which the training thread waits before
//             it looks; everything else on the training thread.
// Source      torch/distributed/fsdp/_flat_param.py (FlatParamHandle with use_orig_params),
//             _fully_shard/_fsdp_param.py, torch 2.11.
class FlatParamHandle : LiveCount<FlatParamHandle> {
 public:
  using LiveCount::live;
  struct Slot {
    std::string fqn;
    at::Tensor parameter;  // as registered in the module; tied modules hold the same tensor
    std::vector<int64_t> shape;
  };

  // `whole`: one rank holds everything and no cast is needed: the unsharded parameter is the shard,
  // nothing is ever freed.
  // Errors  UsageError for no parameters, and for parameters of different dtypes, devices or
  //         requires_grad, naming two that differ; integers cannot be flattened.
  FlatParamHandle(std::string unit,
                  std::vector<Slot> slots,
                  plan::ShardLayout layout,
                  int64_t rank,
                  at::ScalarType param_dtype,
                  at::ScalarType reduce_dtype,
                  FlatParamChoices choices = {});

  [[nodiscard]] const std::string& unit() const { return unit_; }
  // The names as seen from another root: the unit's, and each slot's.
  void rename(std::string unit, std::vector<std::string> fqns);
  [[nodiscard]] const plan::ShardLayout& layout() const { return layout_; }
  [[nodiscard]] const std::vector<Slot>& slots() const { return slots_; }
  [[nodiscard]] const at::Tensor& shard() const { return shard_; }
  [[nodiscard]] at::ScalarType param_dtype() const { return unsharded_.scalar_type(); }
  [[nodiscard]] at::ScalarType reduce_dtype() const { return reduce_dtype_; }
  [[nodiscard]] const Reduction& reduction() const { return reduction_; }
  void set_reduction(const Reduction& reduction) { reduction_ = reduction; }
  [[nodiscard]] bool whole() const { return whole_; }
  // Whether any parameter is trained; not all: is_mixed().
  [[nodiscard]] bool requires_grad() const { return requires_grad_; }
  [[nodiscard]] bool is_mixed() const {
    return requires_grad_ && std::ranges::count(frozen_, true) > 0;
  }
  [[nodiscard]] bool is_frozen(size_t slot) const { return frozen_[slot]; }
  // FQN of a sharded parameter that was frozen or unfrozen since the handle was made, or "".
  [[nodiscard]] std::string refrozen() const;
  [[nodiscard]] bool is_materialized() const;
  // Gives a deferred shard its storage, zeros. Does nothing otherwise.
  void materialize();
  [[nodiscard]] at::Tensor slice(size_t slot) const { return shard_views_[slot]; }
  // A parameter, in shape, out of all ranks' shards() side by side; may be a view.
  [[nodiscard]] at::Tensor parameter_of(const at::Tensor& shards, size_t slot) const;

  // Storage of the unsharded parameters, and of the all-gather's output where that is another
  // tensor. Both are left uninitialised. What is freed is handed out: a device may still use it.
  void allocate();
  c10::DataPtr free();
  void allocate_gathered();
  at::Tensor free_gathered();
  [[nodiscard]] int64_t unsharded_bytes() const;  // of both; 0 when the shard is the whole
  // reshard_after_forward = `ranks`: a shard over fewer ranks, which lie side by side, from which
  // the next all-gather comes. allocate_sub_shard() leaves it uninitialised.
  void set_sub_mesh(int64_t ranks) { sub_mesh_ = ranks; }
  [[nodiscard]] int64_t sub_mesh() const { return sub_mesh_; }  // 0: none
  void allocate_sub_shard();
  at::Tensor free_sub_shard();
  void fill_sub_shard();
  // Shard (or sub-shard) → this rank's slice of gather_output(), cast to param_dtype.
  void copy_in();
  [[nodiscard]] at::Tensor gather_input(bool copied_in) const;
  // For writing below autograd: no version counter moves.
  [[nodiscard]] const at::Tensor& gather_output() const {
    return gathered_.defined() ? gathered_ : unsharded_data_;
  }
  // The all-gather's output → the unsharded parameters.
  void copy_out();

  // Makes the autograd node of the views that use_full() gives from now on: all gradients of the
  // parameters come through it. `ended`: called in a backward when its gradients have, or empty.
  void make_views(std::function<void()> ended);
  [[nodiscard]] bool has_views() const { return edges_.front().is_valid(); }
  // Whether the backward that runs will still bring gradients through views made earlier or later
  // than those that have just ended.
  [[nodiscard]] bool awaits_views() const;
  // Parameters become views of the unsharded parameter. `edges`: with the autograd edges of
  // make_views(), which in backward is what saved tensors look at; false: a forward without
  // gradients.
  void use_full(bool edges);
  // Parameters become leaves again: this rank's 1-D slices.
  void use_shard();
  [[nodiscard]] bool is_full() const { return full_; }

  // For a handle that is whole(), whose unsharded parameter is the master:
  [[nodiscard]] const at::Tensor& unsharded() const { return unsharded_; }
  // Parameters become leaves of their own shape; what is written to them is written to the flat
  // parameter.
  void use_leaves();
  // Copies values of leaves that were given other storage (set_data, as a loaded checkpoint does)
  // to the flat parameter.
  void write_back_leaves();
  // Follows the flat parameter after it was given other data, as Module::to() and load() do: the
  // next views are of that. Does nothing otherwise.
  void follow();

  // Gradients. `accumulator` runs its hooks when a backward has brought the last of them. They wait
  // in unsharded_gradients(), or, after let_gradients_through(), are the unsharded parameter's.
  [[nodiscard]] std::shared_ptr<torch::autograd::Node> grad_accumulator() const;
  [[nodiscard]] UnshardedGradients& unsharded_gradients() { return *gradients_; }
  void let_gradients_through() { to_flat_ = true; }
  // "reduces gradients of 'a.weight', 'a.bias'": what the next reduction carries, for comparing
  // ranks.
  [[nodiscard]] std::string reduced_parameters() const;
  // Becomes the shard's gradient, or is added to it; cast to the master dtype. `carried`: the
  // parameters that it holds (UnshardedGradients::carried()).
  void store_grad(const at::Tensor& reduced, const std::vector<bool>& carried);
  // Drops the shard's gradient where the user has reset every parameter's (model->zero_grad(),
  // optimizer.zero_grad()).
  void adopt_user_zero_grad();
  // Shows the shard's gradient as each parameter's grad().
  void publish_grads();
  void zero_grad();
  // Forgets the views of the last forward.
  void drop_views();
  // FQN of a parameter that received a gradient while it was a slice, or "": its unit's forward did
  // not run through the hooks.
  [[nodiscard]] std::string stray_grad() const;

 private:
  void fill_shard(int64_t rank);
  void make_full_views();
  void make_chunks();
  void make_gradients();
  // Ranks between which the next all-gather runs, and this rank's place among them.
  [[nodiscard]] int64_t gather_ranks() const;
  [[nodiscard]] at::Tensor own_slice(const at::Tensor& gathered) const;
  void copy_out_by_operator();
  void repoint(size_t slot, const at::Tensor& data);
  void forget_grad();

  std::string unit_;
  std::vector<Slot> slots_;
  plan::ShardLayout layout_;
  int64_t rank_;
  at::ScalarType reduce_dtype_;
  Reduction reduction_;
  bool whole_ = false;
  bool requires_grad_ = true;  // of the unsharded parameter
  bool differentiates_frozen_ = false;
  std::vector<bool> frozen_;    // per slot
  std::vector<bool> has_grad_;  // per slot: its part of the shard's gradient is one, not zeros
  at::Tensor shard_;            // leaf that holds the master values; grad() is the reduced gradient
  at::Tensor unsharded_;        // autograd leaf; what parameters are views of in forward
  at::Tensor unsharded_data_;   // same storage, own version counter
  std::vector<at::Tensor> shard_views_;  // per slot, 1-D
  std::vector<at::Tensor> full_views_;   // per slot, in shape, without autograd: data for backward
  std::vector<torch::autograd::Edge> edges_;            // per slot, of the last make_views()
  std::vector<std::weak_ptr<FlatViewsBackward>> made_;  // what make_views() made and lives
  std::vector<int64_t> chunks_;  // what a shard consists of: one flat piece, or one per parameter
  int64_t sub_mesh_ = 0;
  at::Tensor gathered_;   // all-gather's output before copy_out(); undefined: the unsharded one
  at::Tensor sub_shard_;  // undefined: the shard
  std::shared_ptr<UnshardedGradients> gradients_;
  bool to_flat_ = false;
  std::shared_ptr<torch::autograd::Node> accumulator_;
  bool full_ = false;
  bool published_ = false;
};

}  // namespace shardlens::fsdp
