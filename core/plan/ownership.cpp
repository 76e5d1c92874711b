#include "core/plan/ownership.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/error.h"

namespace shardlens::plan {
namespace {

// The box of the elements of a slice of the parameter's part on a rank, whose shape is `local`. The
// layout has dimension `dim` first.
Box box_of(const ShardLayout::Slice& slice, std::span<const int64_t> local, int64_t dim) {
  Box out{std::vector<int64_t>(local.size(), 0), {local.begin(), local.end()}};
  if (!local.empty()) {
    const auto at = static_cast<size_t>(dim);
    const int64_t row = numel_of(local) / local[at];  // not empty: the slice has elements
    out.offset[at] = slice.param_offset / row;
    out.shape[at] = slice.numel / row;
  }
  return out;
}

}  // namespace

int64_t HeldPart::numel() const {
  return std::accumulate(boxes.begin(), boxes.end(), int64_t{0},
                         [](int64_t sum, const Box& box) { return sum + box.numel(); });
}

std::optional<std::pair<int64_t, int64_t>> HeldPart::elements(
    std::span<const int64_t> shape) const {
  const int64_t begin = range_of(boxes.front(), shape).first;
  const int64_t end = range_of(boxes.back(), shape).second;
  return end - begin == numel() ? std::optional(std::pair{begin, end}) : std::nullopt;
}

Ownership::Ownership(const ResolvedPlan& plan) : plan_(&plan) {
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    Divided& unit = units_.emplace_back();
    for (const uint32_t parameter : plan.units[id].parameters) {
      if (const mesh::GroupId group = plan.placements[parameter].group; group != mesh::kNoGroup) {
        unit.by = plan.groups[group];
        break;
      }
    }
    for (int64_t position = 0; position < unit.by.size; ++position) {
      const int64_t rank = position * unit.by.stride;
      unit.layouts.push_back(plan.layout(id, rank));
      for (const uint32_t parameter : plan.units[id].parameters) {
        unit.uneven =
            unit.uneven || plan.local_numel(parameter, rank) != plan.local_numel(parameter, 0);
      }
    }
    SHARDLENS_CHECK(plan.world_size % unit.layouts.front().ranks() == 0,
                    "the world size is not a multiple of the layout's ranks");
  }
}

bool Ownership::apart(const ParameterPlace& place) const {
  return units_[place.unit].uneven || plan_->placements[place.parameter].group != mesh::kNoGroup;
}

// `position`: in the group that divides the unit; `apart`: ranks at other positions hold others.
RankSet Ownership::holders(UnitId unit, int64_t shard, int64_t position, bool apart) const {
  // Ranks that do not shard the unit are the innermost of the mesh, and replicas are outermost.
  const int64_t inner = plan_->groups[plan_->units[unit].gather].stride;
  const int64_t ranks = units_[unit].layouts.front().ranks();
  const RankSet out{shard * inner + (apart ? position : 0), ranks * inner,
                    plan_->world_size / (ranks * inner), apart ? 1 : inner};
  return out.run == out.stride ? RankSet{0, 1, out.size(), 1} : out;
}

HeldPart Ownership::held(const ParameterPlace& place, int64_t shard, int64_t position) const {
  const Divided& unit = units_[place.unit];
  const ShardLayout& layout = unit.layouts[static_cast<size_t>(position)];
  const Placement& placed = plan_->placements[place.parameter];
  const ShardLayout::Slice slice = layout.slice(shard, place.index);
  HeldPart out{
      holders(place.unit, shard, position, apart(place)), {}, slice.shard_offset, slice.padding};
  if (slice.numel == 0) {
    return out;
  }
  const std::vector<int64_t> local = plan_->local_shape(place.parameter, position * unit.by.stride);
  out.boxes = layout.layout() == Layout::kFlat
                  ? boxes_of(local, slice.param_offset, slice.param_offset + slice.numel)
                  : std::vector{box_of(slice, local, placed.shard_dim)};
  if (placed.group != mesh::kNoGroup) {
    const auto dim = static_cast<size_t>(placed.dim);
    const int64_t begin =
        chunk_of(plan_->tree.parameters[place.parameter].shape[dim], unit.by.size, position).first;
    for (Box& box : out.boxes) {
      box.offset[dim] += begin;
    }
  }
  return out;
}

std::vector<HeldPart> Ownership::parts(const ParameterPlace& place) const {
  std::vector<HeldPart> out;
  if (place.unit == kNoUnit) {
    const Placement& placed = plan_->placements[place.parameter];
    const mesh::Group by =
        placed.group == mesh::kNoGroup ? mesh::Group{} : plan_->groups[placed.group];
    for (int64_t position = 0; position < by.size; ++position) {
      out.push_back(part(place, position * by.stride));
    }
  } else {
    const Divided& unit = units_[place.unit];
    for (int64_t position = 0; position < (apart(place) ? unit.by.size : 1); ++position) {
      for (int64_t shard = 0; shard < unit.layouts.front().ranks(); ++shard) {
        out.push_back(held(place, shard, position));
      }
    }
  }
  std::erase_if(out, [](const HeldPart& part) { return part.boxes.empty(); });
  const std::vector<int64_t>& shape = plan_->tree.parameters[place.parameter].shape;
  std::ranges::stable_sort(
      out, {}, [&](const HeldPart& part) { return range_of(part.boxes.front(), shape).first; });
  return out;
}

HeldPart Ownership::part(const ParameterPlace& place, int64_t rank) const {
  if (place.unit != kNoUnit) {
    const int64_t ranks = units_[place.unit].layouts.front().ranks();
    const mesh::Group& gather = plan_->groups[plan_->units[place.unit].gather];
    return held(place, ranks == 1 ? 0 : gather.position(rank),
                units_[place.unit].by.position(rank));
  }
  const Placement& placed = plan_->placements[place.parameter];
  const std::vector<int64_t> local = plan_->local_shape(place.parameter, rank);
  HeldPart out{{0, 1, plan_->world_size, 1}, {}, 0, 0};
  if (numel_of(local) == 0) {
    return out;
  }
  out.boxes.push_back({std::vector<int64_t>(local.size(), 0), local});
  if (placed.group != mesh::kNoGroup) {
    const mesh::Group& by = plan_->groups[placed.group];
    const auto dim = static_cast<size_t>(placed.dim);
    out.boxes.front().offset[dim] =
        chunk_of(plan_->tree.parameters[place.parameter].shape[dim], by.size, by.position(rank))
            .first;
    out.ranks = {by.position(rank) * by.stride, by.size * by.stride,
                 plan_->world_size / (by.size * by.stride), by.stride};
  }
  return out;
}

std::vector<HeldPadding> Ownership::padding(UnitId unit) const {
  std::vector<HeldPadding> out;
  const Divided& of = units_[unit];
  for (int64_t position = 0; position < (of.uneven ? of.by.size : 1); ++position) {
    const ShardLayout& layout = of.layouts[static_cast<size_t>(position)];
    for (int64_t shard = 0; shard < layout.ranks(); ++shard) {
      const RankSet ranks = holders(unit, shard, position, of.uneven);
      if (layout.layout() == Layout::kFlat) {
        const int64_t begin = shard * layout.shard_numel();
        for (const ShardLayout::Piece& piece : layout.pieces()) {
          const int64_t low = std::max(piece.offset, begin);
          const int64_t high = std::min(piece.offset + piece.numel, begin + layout.shard_numel());
          if (piece.parameter == ShardLayout::kPadding && low < high) {
            out.push_back({ranks, low - begin, high - low});
          }
        }
        continue;
      }
      for (size_t i = 0; i < layout.parameter_count(); ++i) {
        const ShardLayout::Slice slice = layout.slice(shard, i);
        if (slice.padding > 0) {
          out.push_back({ranks, slice.shard_offset + slice.numel, slice.padding});
        }
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
