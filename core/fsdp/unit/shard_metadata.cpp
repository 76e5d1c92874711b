#include "core/fsdp/unit/shard_metadata.h"

#include <algorithm>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "core/base/error.h"

namespace shardlens::fsdp {

ShardMetadata shard_metadata(const FlatParamHandle& handle, OffsetPair range, int64_t padding) {
  const auto [first, last] = range;
  if (first < 0 || last < 0 || first > last) {
    throw UsageError(
        fmt::format("Shard the flatten parameter with an invalid offset pair ({}, {}); expected "
                    "0 <= first <= last",
                    first, last));
  }
  if (padding > last - first + 1) {
    throw UsageError(
        fmt::format("The number of padding is larger than the shard size: {} of {} elements",
                    padding, last - first + 1));
  }
  ShardMetadata metadata;
  for (size_t i = 0; i < handle.slots().size(); ++i) {
    const plan::ShardLayout::Slice slice = handle.layout().overlap(first, last + 1, i);
    if (slice.numel == 0) {
      continue;
    }
    const FlatParamHandle::Slot& slot = handle.slots()[i];
    metadata.names.push_back(slot.fqn);
    metadata.shapes.push_back(slot.shape);
    metadata.numels.push_back(c10::multiply_integers(slot.shape));
    metadata.offsets.emplace_back(slice.param_offset, slice.param_offset + slice.numel - 1);
  }
  return metadata;
}

OffsetPair global_offsets(const FlatParamHandle& handle,
                          std::span<const std::optional<OffsetPair>> offsets) {
  if (offsets.size() != handle.slots().size()) {
    throw UsageError(
        fmt::format("global_offsets: {} entries, but the flat parameter has {} parameters",
                    offsets.size(), handle.slots().size()));
  }
  std::optional<OffsetPair> range;
  for (const plan::ShardLayout::Piece& piece : handle.layout().pieces()) {
    if (piece.parameter == plan::ShardLayout::kPadding || !offsets[piece.parameter].has_value()) {
      continue;
    }
    const auto [first, last] = *offsets[piece.parameter];
    range = {range.has_value() ? range->first : piece.offset + first, piece.offset + last};
  }
  return range.value_or(OffsetPair{0, 0});
}

FlatParamShard shard_of(const FlatParamHandle& handle, int64_t rank, int64_t ranks) {
  SHARDLENS_CHECK(handle.shard().whole(), "shard_of() needs an unsharded flat parameter");
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    throw UsageError(fmt::format("shard_of: rank {} of {} ranks does not exist", rank, ranks));
  }
  const at::NoGradGuard no_grad;
  const at::Tensor flat = handle.unsharded().detach();
  const int64_t numel = (flat.numel() + ranks - 1) / ranks;
  const int64_t first = std::min(rank * numel, flat.numel());
  const int64_t held = std::min(numel, flat.numel() - first);
  FlatParamShard shard;
  shard.values = at::zeros({numel}, flat.options());
  shard.values.narrow(0, 0, held).copy_(flat.narrow(0, first, held));
  shard.padding = numel - held;
  if (held > 0) {
    shard.metadata = shard_metadata(handle, {first, first + numel - 1}, shard.padding);
  }
  return shard;
}

}  // namespace shardlens::fsdp
