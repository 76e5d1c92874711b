#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <ATen/core/TensorBody.h>

#include "core/train/optimizer.h"

namespace shardlens::train {

// Where a slice of a parameter is in the shards that an optimizer updates.
struct InShard {
  size_t shard = 0;    // index into Optimizer::states()
  int64_t offset = 0;  // of its first element in the flattened shard
};

// A slice is a view of a shard, and shares its memory. nullopt: no optimizer updates it.
[[nodiscard]] inline std::optional<InShard> place_in_shard(const at::Tensor& slice,
                                                           std::span<const ShardState> states) {
  const auto* begin = static_cast<const std::byte*>(slice.const_data_ptr());
  for (size_t i = 0; i < states.size(); ++i) {
    const at::Tensor& shard = states[i].shard;
    const auto* first = static_cast<const std::byte*>(shard.const_data_ptr());
    if (first <= begin && begin < first + shard.nbytes()) {
      return InShard{i, (begin - first) / static_cast<int64_t>(shard.element_size())};
    }
  }
  return std::nullopt;
}

}  // namespace shardlens::train
