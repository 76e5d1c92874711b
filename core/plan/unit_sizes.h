#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/hook.h"
#include "core/plan/resolved_plan.h"

namespace shardlens::plan {

// Elements that a reduction carries, and a rank's part of them.
struct Reduced {
  int64_t full = 0, shard = 0;
  friend bool operator==(const Reduced&, const Reduced&) = default;
};

// Elements of a unit's flat parameter and of a rank's shard, including padding; the same for what a
// reduction carries (ResolvedPlan::reduced_layout); and the elements that the optimizer updates
// (stepped_numel). `float8`: float8_numel(); `unsharded`: unsharded_bytes(); `sharded`:
// shard_bytes(). `states`: of the optimizer on a rank, if a recorded run has them
// (Parameter::state_bytes).
//
// `last`, `others`: of the gradients of the last one of a unit's modules, and of those that this
// leaves (Grads::kLast, kOthers); for units of several modules in layout per_parameter whose last
// module is no block.
struct UnitSize {
  int64_t full = 0, shard = 0;
  int64_t reduced = 0, reduced_shard = 0, stepped = 0, float8 = 0;
  Bytes unsharded = 0, sharded = 0;
  std::optional<Bytes> states = std::nullopt;
  Reduced last = {}, others = {};

  [[nodiscard]] Reduced reduced_of(Grads grads) const {
    return grads == Grads::kLast     ? last
           : grads == Grads::kOthers ? others
                                     : Reduced{reduced, reduced_shard};
  }
  // `states`, or this many numbers of a dtype for each element that is updated.
  [[nodiscard]] Bytes optimizer_states(int64_t numbers, DType dtype) const {
    return states.value_or(stepped * numbers * size_of(dtype));
  }
  friend bool operator==(const UnitSize&, const UnitSize&) = default;
};

// Bytes of all ranks' shards of a unit, including padding, in the parameters' unsharded dtypes: the
// output of its all-gather. `layout`: that of the unit.
[[nodiscard]] Bytes unsharded_bytes(const ResolvedPlan& plan, UnitId id, const ShardLayout& layout);

// Elements of the unit's parameters that are gathered as float8 (ResolvedPlan::gathers_float8).
[[nodiscard]] int64_t float8_numel(const ResolvedPlan& plan, UnitId id);

// Bytes of a rank's shard of a unit, including padding, in the dtypes in which the parameters are
// trained.
[[nodiscard]] Bytes shard_bytes(const ResolvedPlan& plan, UnitId id, const ShardLayout& layout);

// The sizes of every unit, from ResolvedPlan::layout. They are not computed again for a unit that
// is equal to the unit before it.
[[nodiscard]] std::vector<UnitSize> unit_sizes(const ResolvedPlan& plan);

// Message sizes of a unit's collectives: the larger of input and output (the output of an
// all-gather, also over a sub-mesh; the input of a reduce-scatter). An all-reduce carries a reduced
// shard, or the whole unit if it is not sharded.
struct UnitMessages {
  Bytes all_gather = 0, reduce_scatter = 0, all_reduce_shard = 0, all_reduce_full = 0;
};
// `grads`: of a reduction.
[[nodiscard]] UnitMessages unit_messages(const ResolvedPlan& plan,
                                         UnitId id,
                                         const UnitSize& size,
                                         Grads grads = Grads::kAll);

}  // namespace shardlens::plan
