#include "core/plan/unit_sizes.h"

#include <algorithm>
#include <cmath>

namespace shardlens::plan {
namespace {

bool alike(const ResolvedPlan& plan, UnitId a, UnitId b) {
  const Unit &x = plan.units[a], &y = plan.units[b];
  const bool float8 = x.mixed_precision.gathers_float8 || y.mixed_precision.gathers_float8;
  return x.api == y.api && x.gather == y.gather && plan.param_dtype(a) == plan.param_dtype(b) &&
         std::equal(
             x.parameters.begin(), x.parameters.end(), y.parameters.begin(), y.parameters.end(),
             [&](uint32_t one, uint32_t other) {
               const Parameter &p = plan.tree.parameters[one], &q = plan.tree.parameters[other];
               return p.shape == q.shape && p.requires_grad == q.requires_grad &&
                      p.dtype == q.dtype && p.state_bytes == q.state_bytes &&
                      plan.placements[one] == plan.placements[other] &&
                      (!float8 || plan.gathers_float8(a, one) == plan.gathers_float8(b, other));
             });
}

// Bytes of a rank's chunks of all parameters, in the dtype of each.
template <typename DTypeOf>
Bytes chunk_bytes(const ResolvedPlan& plan,
                  UnitId id,
                  const ShardLayout& layout,
                  const DTypeOf& dtype_of) {
  Bytes bytes = 0;
  const std::vector<uint32_t>& parameters = plan.units[id].parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ShardLayout::Slice chunk = layout.slice(0, i);
    bytes += (chunk.numel + chunk.padding) * size_of(dtype_of(parameters[i]));
  }
  return bytes;
}

bool has_frozen(const ResolvedPlan& plan, UnitId id) {
  return std::ranges::any_of(plan.units[id].parameters, [&plan](uint32_t parameter) {
    return !plan.tree.parameters[parameter].requires_grad;
  });
}

// Whether the unit may have gradients that are reduced apart.
bool ends_with_head(const ResolvedPlan& plan, UnitId id) {
  const Unit& unit = plan.units[id];
  return id > 0 && unit.modules.size() > 1 && unit.api == Api::kFullyShard &&
         plan.plan.layout == Layout::kPerParameter &&
         std::ranges::find(plan.tree.blocks, unit.modules.back()) == plan.tree.blocks.end();
}

// At most a PiB, which no device has: a damaged file may have any number, and sums fit in 64 bits.
std::optional<Bytes> recorded_states(const ResolvedPlan& plan,
                                     UnitId id,
                                     const ShardLayout& layout) {
  const std::vector<uint32_t>& parameters = plan.units[id].parameters;
  double bytes = 0;
  bool recorded = false;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (const auto& each = plan.tree.parameters[parameters[i]].state_bytes) {
      bytes += *each * static_cast<double>(layout.slice(0, i).numel);
      recorded = true;
    }
  }
  constexpr double kMost = 1125899906842624.0;
  return recorded ? std::optional(static_cast<Bytes>(std::llround(std::min(bytes, kMost))))
                  : std::nullopt;
}

}  // namespace

int64_t float8_numel(const ResolvedPlan& plan, UnitId id) {
  int64_t numel = 0;
  if (plan.units[id].mixed_precision.gathers_float8) {
    for (const uint32_t parameter : plan.units[id].parameters) {
      numel += plan.gathers_float8(id, parameter) ? plan.local_numel(parameter) : 0;
    }
  }
  return numel;
}

Bytes unsharded_bytes(const ResolvedPlan& plan, UnitId id, const ShardLayout& layout) {
  const Bytes param = size_of(plan.param_dtype(id));
  if (layout.layout() == Layout::kFlat) {  // all in one dtype, and padding between them
    const Bytes whole = layout.padded_numel() * param - float8_numel(plan, id) * (param - 1);
    return (whole + layout.ranks() - 1) / layout.ranks() * layout.ranks();
  }
  if (plan.gather_dtype(id) == plan.param_dtype(id)) {
    return layout.padded_numel() * param;
  }
  return layout.ranks() * chunk_bytes(plan, id, layout, [&](uint32_t parameter) {
           return plan.unsharded_dtype(id, parameter);
         });
}

Bytes shard_bytes(const ResolvedPlan& plan, UnitId id, const ShardLayout& layout) {
  if (layout.layout() == Layout::kFlat) {
    return layout.shard_numel() * size_of(plan.master_dtype(id));
  }
  return chunk_bytes(plan, id, layout,
                     [&](uint32_t parameter) { return plan.tree.parameters[parameter].dtype; });
}

std::vector<UnitSize> unit_sizes(const ResolvedPlan& plan) {
  std::vector<UnitSize> sizes;
  sizes.reserve(plan.units.size());
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    if (id > 0 && alike(plan, id - 1, id)) {
      sizes.push_back(sizes.back());
    } else {
      const ShardLayout layout = plan.layout(id);
      std::optional<ShardLayout> of_trained;  // nullopt: no parameter is frozen
      if (has_frozen(plan, id)) {
        of_trained = plan.reduced_layout(id);
      }
      const ShardLayout& reduced = of_trained ? *of_trained : layout;
      const int64_t stepped = of_trained ? plan.stepped_numel(id) : layout.shard_numel();
      sizes.push_back({layout.padded_numel(), layout.shard_numel(), reduced.padded_numel(),
                       reduced.shard_numel(), stepped, float8_numel(plan, id),
                       unsharded_bytes(plan, id, layout), shard_bytes(plan, id, layout),
                       recorded_states(plan, id, layout)});
      if (ends_with_head(plan, id)) {
        const ShardLayout last = plan.reduced_layout_of_last(id);
        const ShardLayout others = plan.reduced_layout_of_others(id);
        sizes.back().last = {last.padded_numel(), last.shard_numel()};
        sizes.back().others = {others.padded_numel(), others.shard_numel()};
      }
    }
  }
  return sizes;
}

UnitMessages unit_messages(const ResolvedPlan& plan, UnitId id, const UnitSize& size, Grads grads) {
  const Bytes reduce = size_of(plan.reduce_dtype(id));
  const Reduced reduced = size.reduced_of(grads);
  return {.all_gather = size.unsharded,
          .reduce_scatter = reduced.full * reduce,
          .all_reduce_shard = reduced.shard * reduce,
          .all_reduce_full = reduced.full * reduce};
}

}  // namespace shardlens::plan
