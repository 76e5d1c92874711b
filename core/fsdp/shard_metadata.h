#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/TensorBody.h>

#include "core/fsdp/flat_param_handle.h"

namespace shardlens::fsdp {

using OffsetPair = std::pair<int64_t, int64_t>;  // first and last element, both included

// Which original parameters a range of a flat parameter holds, in order; the vectors are parallel.
struct ShardMetadata {
  std::vector<std::string> names;
  std::vector<std::vector<int64_t>> shapes;  // of the whole parameters
  std::vector<int64_t> numels;
  std::vector<OffsetPair> offsets;  // held elements of the flattened parameter
  friend bool operator==(const ShardMetadata&, const ShardMetadata&) = default;
};

// Of elements `range` of the handle's flat parameter, `padding` of which at its end are not the
// parameters'; a range may reach past the end. Errors: UsageError for a negative or reversed range
// and for more padding than the range has.
//
// Source      FlatParameter.shard_by_offsets and shard_metadata, torch 1.12.
[[nodiscard]] ShardMetadata shard_metadata(const FlatParamHandle& handle,
                                           OffsetPair range,
                                           int64_t padding = 0);

// The inverse: where in the flat parameter the held elements begin and end, from what is held of
// each parameter; (0, 0) if nothing is. Errors: UsageError unless there is one entry per parameter.
[[nodiscard]] OffsetPair global_offsets(const FlatParamHandle& handle,
                                        std::span<const std::optional<OffsetPair>> offsets);

// The part of the handle's flat parameter that rank `rank` of `ranks` would hold.
struct FlatParamShard {
  at::Tensor values;    // [ceil(numel / ranks)] on every rank, zeros in the padding
  int64_t padding = 0;  // elements at the end
  ShardMetadata metadata;
};
// The handle must be whole(). Cut as torch.chunk does and padded on the right to the first chunk's
// size.
//
// Source      FlatParamHandle._get_shard, torch 2.11.
[[nodiscard]] FlatParamShard shard_of(const FlatParamHandle& handle, int64_t rank, int64_t ranks);

}  // namespace shardlens::fsdp
