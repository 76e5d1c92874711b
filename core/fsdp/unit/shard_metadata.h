#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/TensorBody.h>

#include "core/fsdp/unit/flat_param_handle.h"

namespace shardlens::fsdp {

using OffsetPair = std::pair<int64_t, int64_t>;  // first and last element, both included

// The original parameters in a range of a flat parameter, in order. All vectors have one entry per
// parameter.
struct ShardMetadata {
  std::vector<std::string> names;
  std::vector<std::vector<int64_t>> shapes;  // of the unsharded parameters
  std::vector<int64_t> numels;
  std::vector<OffsetPair> offsets;  // elements of the flattened parameter that are in the range
  friend bool operator==(const ShardMetadata&, const ShardMetadata&) = default;
};

// Metadata of elements `range` of the handle's flat parameter. The last `padding` elements belong
// to no parameter; a range may extend past the end. Errors: UsageError for a negative or reversed
// range, and if `padding` is larger than the range.
//
// Source      FlatParameter.shard_by_offsets and shard_metadata, torch 1.12.
[[nodiscard]] ShardMetadata shard_metadata(const FlatParamHandle& handle,
                                           OffsetPair range,
                                           int64_t padding = 0);

// The inverse: the range in the flat parameter, from the elements of each parameter that are in it
// (nullopt: none); (0, 0) if there are none. Errors: UsageError unless there is one entry per
// parameter.
[[nodiscard]] OffsetPair global_offsets(const FlatParamHandle& handle,
                                        std::span<const std::optional<OffsetPair>> offsets);

// The shard of the handle's flat parameter for rank `rank` of `ranks`.
struct FlatParamShard {
  at::Tensor values;    // [ceil(numel / ranks)] on every rank, zeros in the padding
  int64_t padding = 0;  // number of padding elements at the end
  ShardMetadata metadata;
};
// The handle must be whole(). Splits it as torch.chunk does, and pads each chunk at the end to the
// size of the first.
//
// Source      FlatParamHandle._get_shard, torch 2.11.
[[nodiscard]] FlatParamShard shard_of(const FlatParamHandle& handle, int64_t rank, int64_t ranks);

}  // namespace shardlens::fsdp
