#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/TensorBody.h>

#include "core/fsdp/unit/all_gather_extension.h"
#include "core/fsdp/unit/flat_shard.h"

namespace shardlens::fsdp {

// The memory of one unit's unsharded parameters, and the way of the shard through an all-gather
// into it.
//
// Layout      per parameter, a shard is one chunk of every parameter, so the ranks' shards one
//             after the other (as an all-gather has them) are not the parameters one after the
//             other. copy_out() converts the first to the second.
// Shapes      data() [padded_numel] in param_dtype; storage of 0 bytes while resharded, unless
//             keep().
// Threads     the thread that trains.
class UnshardedStorage {
 public:
  // `shard` must outlive it. Allocated at first.
  explicit UnshardedStorage(FlatShard& shard);

  // Storage, not initialized, of the unsharded parameters, and of the all-gather's output if that
  // is another tensor. Freed memory is returned, because a device may still use it. Without effect
  // for a whole() shard.
  void allocate();
  c10::DataPtr free();
  // From now on free() frees nothing, and allocate() takes what is there: for copy-outs on the
  // stream that reads the parameters, which then are in order.
  void keep() { keeps_ = true; }
  void allocate_gathered();
  at::Tensor free_gathered();
  [[nodiscard]] int64_t bytes() const;      // of both; 0 if whole()
  [[nodiscard]] bool is_allocated() const;  // between allocate() and free()
  // reshard_after_forward = `ranks`: a larger shard over `ranks` neighbouring ranks, which the next
  // all-gather reads. allocate_sub_shard() does not initialize it.
  void set_sub_mesh(int64_t ranks) { sub_mesh_ = ranks; }
  void allocate_sub_shard();
  at::Tensor free_sub_shard();
  void fill_sub_shard();

  // Copies the shard (or sub-shard), cast to param_dtype, to this rank's slice of gather_output().
  // From the host, the current stream copies; the shard must not change before that.
  void copy_in();
  [[nodiscard]] at::Tensor gather_input(bool copied_in);
  // Has a version counter of its own, so that autograd does not see the writes.
  [[nodiscard]] const at::Tensor& gather_output() const {
    return gathered_.defined() ? gathered_ : data_;
  }
  // Instead of copy_in(), in layout per_parameter: an all-gather of `parts` of the shard writes
  // gather_output() in the layout of the unsharded parameters, and copy_out() has nothing to copy.
  [[nodiscard]] bool can_gather_parts() const;
  struct PartsInput {
    at::Tensor shard;
    std::vector<int64_t> parts;  // their numbers of elements
  };
  [[nodiscard]] PartsInput gather_parts_input();
  // Copies the all-gather's output to the unsharded parameters.
  void copy_out();
  // All-gathers between several ranks pass through what `make` returns, unless that is null.
  void extend(const MakeAllGatherExtension& make);
  [[nodiscard]] bool is_extended() const { return extension_ != nullptr; }

  // Without autograd.
  [[nodiscard]] const at::Tensor& data() const { return data_; }
  [[nodiscard]] at::Tensor parameter(size_t slot) const;  // in its shape
  // Whether what is unsharded, or the sub-shard, was gathered from values that the shard no longer
  // has: then reshard before the next use. values_written(): call it after writes that leave no
  // trace (at::Tensor::data(), as torch::optim::SGD writes), or may have been.
  [[nodiscard]] bool is_stale() const;
  void values_written() { written_ = true; }
  // The unsharded parameters have the values too that raised the shard's version() by `versions`.
  void has_values_of(int64_t versions) { gathered_version_ += versions; }
  // Takes the values of a whole() shard, which were replaced.
  void follow() { data_ = shard_.values(); }

 private:
  void note_gather();  // an all-gather is about to read the shard, unless there is a sub-shard
  [[nodiscard]] int64_t gather_ranks() const;  // of the next all-gather
  [[nodiscard]] at::Tensor own_slice(const at::Tensor& gathered) const;
  void copy_out(const at::Tensor& gathered);
  void copy_out_by_operator(const at::Tensor& gathered);
  [[nodiscard]] ExtendedUnit extended_unit() const;
  void copy_in_extended();
  void copy_out_extended();

  FlatShard& shard_;
  at::Tensor data_;
  bool allocated_ = true;
  bool keeps_ = false;
  int64_t sub_mesh_ = 0;
  at::Tensor gathered_;    // all-gather's output before copy_out(); undefined: data_ is used
  bool in_place_ = false;  // gathered_ has the layout of data_
  at::Tensor sub_shard_;   // undefined: the next all-gather reads the shard
  std::shared_ptr<AllGatherExtension> extension_;
  int64_t gathered_version_ = 0;  // of the shard, when the last all-gather read it
  bool written_ = false;          // values_written() was called since the last all-gather
};

}  // namespace shardlens::fsdp
