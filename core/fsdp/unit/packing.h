#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/TensorBody.h>

#include "core/layout/shard_layout.h"

namespace shardlens::fsdp {

// 1-D tensors one after the other in one tensor. It has their dtype or, if their dtypes differ,
// that of bytes, as the all-gather of FSDP2 then has.
//
// Layout  part i is the range [start(i), start(i) + size(i)). `aligned`: it starts at a multiple of
//         its element size, which view() needs; otherwise there are no gaps.
// Units   elements of dtype().
class Packing {
 public:
  Packing() = default;
  // `dtypes`, `numels`: of the parts, in their own elements.
  Packing(std::span<const at::ScalarType> dtypes, std::span<const int64_t> numels, bool aligned);

  [[nodiscard]] at::ScalarType dtype() const { return dtype_; }
  [[nodiscard]] bool in_bytes() const { return dtype_ == at::kByte; }
  [[nodiscard]] size_t parts() const { return starts_.size(); }
  [[nodiscard]] int64_t start(size_t part) const { return starts_[part]; }
  [[nodiscard]] int64_t size(size_t part) const { return sizes_[part]; }
  [[nodiscard]] int64_t numel() const { return numel_; }
  // Views of a part of `packed`: in its dtype, or in that of the part.
  [[nodiscard]] at::Tensor range(const at::Tensor& packed, size_t part) const;
  [[nodiscard]] at::Tensor view(const at::Tensor& packed, size_t part) const;

 private:
  at::ScalarType dtype_ = at::kFloat;
  std::vector<at::ScalarType> dtypes_;
  std::vector<int64_t> starts_, sizes_;
  int64_t numel_ = 0;
};

// The chunks of a unit's shards: one, or in layout per_parameter one for each parameter.
struct Chunks {
  // `dtypes`: of the parameters. `param_dtype`: of the unsharded ones; nullopt: the same.
  Chunks() = default;
  Chunks(const plan::ShardLayout& layout,
         std::span<const at::ScalarType> dtypes,
         std::optional<at::ScalarType> param_dtype,
         const std::vector<bool>& frozen);

  std::vector<int64_t> numels;
  Packing stored;    // in a shard
  Packing gathered;  // in one rank's part of an all-gather's output
  Packing full;      // those of all ranks, in the unsharded parameters
  // The shard's gradient has the chunks of the trained parameters; in layout flat, of all.
  at::ScalarType grad_dtype = at::kFloat;
  std::vector<int64_t> grad_starts;
  int64_t grad_numel = 0;
};

}  // namespace shardlens::fsdp
