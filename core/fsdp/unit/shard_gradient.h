#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/TensorBody.h>

#include "core/fsdp/unit/flat_shard.h"

namespace shardlens::fsdp {

// The gradient of one unit's shard, which reductions store, and what the parameters show of it.
//
// Threads     store(), updates() and forget() on a communication thread, for which the training
//             thread waits before it reads the gradient; everything else on the training thread.
class ShardGradient {
 public:
  // `shard` must outlive it.
  explicit ShardGradient(FlatShard& shard);

  // Makes `reduced`, cast to the master dtype, the shard's gradient, or adds it. `carried`: the
  // parameters in `reduced` (UnshardedGradients::carried()).
  void store(const at::Tensor& reduced, const std::vector<bool>& carried);
  // A copy of `reduced`, cast to the gradient's dtype, in pinned memory of the host. The current
  // stream copies: its values are there when that has finished.
  [[nodiscard]] at::Tensor to_host(const at::Tensor& reduced) const;
  // Makes the shard's gradient follow what the user has done with the published gradients, or with
  // the shard's own: reset or assigned them, that of the slice or of the whole parameter. Returns
  // the slots whose gradient was reset. Errors: UsageError if one has another shape.
  std::vector<size_t> adopt();
  // Sets each parameter's grad() to its slice of the shard's gradient.
  void publish();
  // Publishes zeros for the set slots without a gradient, so that a reset is noticed.
  void publish_zeros(const std::vector<bool>& slots);
  [[nodiscard]] bool exists() const;  // of any parameter
  [[nodiscard]] bool exists(size_t slot) const { return exists_[slot]; }
  void zero();    // the parameters' gradients too
  void forget();  // drops the shard's gradient, before it was published
  // The range of a slot in a shard that contains only the parameters in `carried`.
  [[nodiscard]] FlatParamRange range_of(size_t slot, const std::vector<bool>& carried) const;
  // The shard with its gradient; if only some parameters are frozen, the slices of the others that
  // have one. `first`: index of the unit's first shard in ShardedModel::flat_shards().
  [[nodiscard]] std::vector<ShardUpdate> updates(size_t first) const;

 private:
  [[nodiscard]] at::Tensor slice(size_t slot) const;
  void make_if_missing();
  std::vector<size_t> adopt_replaced();
  void assign(size_t slot);

  FlatShard& shard_;
  std::vector<bool> exists_;       // per slot: its part is not just zeros
  std::vector<at::Tensor> shown_;  // per slot: the gradient that was published, if any
  at::Tensor stored_;              // the shard's gradient, unless the user has replaced it
};

}  // namespace shardlens::fsdp
