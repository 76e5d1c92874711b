#include "core/plan/held_ranges.h"

#include <algorithm>

#include "core/base/error.h"

namespace shardlens::plan {
namespace {

RankSet holders(const ShardLayout& layout, int64_t world_size, int64_t shard) {
  SHARDLENS_CHECK(world_size % layout.ranks() == 0,
                  "the world size is not a multiple of the layout's ranks");
  // Ranks of a replica are consecutive, so copies of a shard are `layout.ranks()` ranks apart.
  return {shard, layout.ranks(), world_size / layout.ranks()};
}

}  // namespace

std::vector<HeldRange> held_ranges(const ShardLayout& layout,
                                   int64_t world_size,
                                   size_t parameter) {
  std::vector<HeldRange> out;
  for (int64_t shard = 0; shard < layout.ranks(); ++shard) {
    const ShardLayout::Slice slice = layout.slice(shard, parameter);
    if (slice.numel > 0) {
      out.push_back({holders(layout, world_size, shard), slice.param_offset,
                     slice.param_offset + slice.numel, slice.shard_offset});
    }
  }
  return out;
}

std::vector<HeldRange> padding_ranges(const ShardLayout& layout, int64_t world_size) {
  std::vector<HeldRange> out;
  for (int64_t shard = 0; shard < layout.ranks(); ++shard) {
    const RankSet ranks = holders(layout, world_size, shard);
    if (layout.layout() == Layout::kFlat) {
      const int64_t begin = shard * layout.shard_numel();
      for (const ShardLayout::Piece& piece : layout.pieces()) {
        const int64_t low = std::max(piece.offset, begin);
        const int64_t high = std::min(piece.offset + piece.numel, begin + layout.shard_numel());
        if (piece.parameter == ShardLayout::kPadding && low < high) {
          out.push_back({ranks, 0, high - low, low - begin});
        }
      }
      continue;
    }
    for (size_t i = 0; i < layout.parameter_count(); ++i) {
      const ShardLayout::Slice slice = layout.slice(shard, i);
      if (slice.padding > 0) {
        out.push_back({ranks, 0, slice.padding, slice.shard_offset + slice.numel});
      }
    }
  }
  return out;
}

std::vector<ParameterPlace> parameter_places(const ResolvedPlan& plan) {
  std::vector<ParameterPlace> out;
  out.reserve(plan.tree.parameters.size());
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    const std::vector<uint32_t>& parameters = plan.units[id].parameters;
    for (uint32_t i = 0; i < parameters.size(); ++i) {
      out.push_back({parameters[i], id, i});
    }
  }
  for (const uint32_t parameter : plan.ignored_parameters) {
    out.push_back({parameter, kNoUnit, 0});
  }
  return out;
}

}  // namespace shardlens::plan
