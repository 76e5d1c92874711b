#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/TensorBody.h>

#include "core/fsdp/unit/flat_param_types.h"
#include "core/fsdp/unit/packing.h"
#include "core/layout/shard_layout.h"

namespace shardlens::fsdp {

// This rank's part of one unit's parameters, in one 1-D tensor, with what is known of them.
//
// Shapes      values() [shard_numel] in the master dtype; view(slot) 1-D, without padding.
// Ownership   of the values. The parameters are those of the modules.
// Threads     the thread that trains.
class FlatShard {
 public:
  // Copies this rank's part of every parameter that has values; the others are zeros.
  // `param_dtype`: of the unsharded parameters; nullopt: each parameter's own.
  // Errors  see FlatParamHandle.
  FlatShard(std::string unit,
            std::vector<FlatParamSlot> slots,
            plan::ShardLayout layout,
            int64_t rank,
            std::optional<at::ScalarType> param_dtype,
            const FlatParamChoices& choices);

  [[nodiscard]] const std::string& unit() const { return unit_; }
  // Other names, relative to another root.
  void rename(std::string unit, std::vector<std::string> fqns);
  [[nodiscard]] const std::vector<FlatParamSlot>& slots() const { return slots_; }
  [[nodiscard]] const plan::ShardLayout& layout() const { return layout_; }
  [[nodiscard]] const Chunks& chunks() const { return chunks_; }
  [[nodiscard]] int64_t rank() const { return rank_; }
  [[nodiscard]] c10::Device device() const { return device_; }  // of the unsharded parameters
  // One rank, no cast and no offload: the unsharded parameter is then the shard.
  [[nodiscard]] bool whole() const { return whole_; }
  [[nodiscard]] bool is_frozen(size_t slot) const { return frozen_[slot]; }
  [[nodiscard]] bool requires_grad() const { return requires_grad_; }  // not all are frozen
  [[nodiscard]] bool is_mixed() const;  // some are frozen, others not

  // A leaf: its grad() is the reduced gradient.
  [[nodiscard]] const at::Tensor& values() const { return values_; }
  [[nodiscard]] const at::Tensor& view(size_t slot) const { return views_[slot]; }
  // Frees the storage of a deferred shard; after everything that will view it was made.
  void free_deferred();
  // Whether the values have storage; a deferred shard has none until materialize(), which fills it
  // with zeros.
  [[nodiscard]] bool is_materialized() const;
  void materialize();
  // Increases when a parameter or the values change.
  [[nodiscard]] int64_t version() const;
  // This rank's part of `given`, which is the slice of a parameter or all of it. Undefined: it has
  // another number of elements.
  [[nodiscard]] at::Tensor own_part(const at::Tensor& given, size_t slot) const;
  // A parameter in its shape from all ranks' values(), or its gradient from all ranks' gradients of
  // them, one after the other; may be a view.
  [[nodiscard]] at::Tensor parameter_of(const at::Tensor& shards, size_t slot) const;
  [[nodiscard]] at::Tensor gradient_of(const at::Tensor& gradients, size_t slot) const;
  // Replaces the values of a whole() shard; then of the parameters in it.
  void replace(const at::Tensor& values) { values_ = values; }
  void view_as(const std::vector<at::Tensor>& parameters);

 private:
  void fill();
  // A slot's elements [start, start + size) of each rank's chunk in `shards`, in the parameter's
  // shape. in_bytes: the chunks are bytes of the parameter's dtype.
  [[nodiscard]] at::Tensor whole_of(
      const at::Tensor& shards, size_t slot, int64_t start, int64_t size, bool in_bytes) const;

  std::string unit_;
  std::vector<FlatParamSlot> slots_;
  plan::ShardLayout layout_;
  int64_t rank_;
  c10::Device device_;
  bool whole_ = false, deferred_ = false, requires_grad_ = true;
  std::vector<bool> frozen_;  // per slot
  Chunks chunks_;
  at::Tensor values_;
  std::vector<at::Tensor> views_;  // per slot
};

}  // namespace shardlens::fsdp
