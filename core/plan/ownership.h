#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/layout/box.h"
#include "core/layout/shard_layout.h"
#include "core/plan/resolved_plan.h"

namespace shardlens::plan {

// `count` runs of `run` consecutive ranks; the runs begin at first, first + stride, ….
struct RankSet {
  int64_t first = 0, stride = 1, count = 1, run = 1;

  [[nodiscard]] int64_t size() const { return count * run; }
  [[nodiscard]] int64_t at(int64_t i) const { return first + i / run * stride + i % run; }
  friend bool operator==(const RankSet&, const RankSet&) = default;
};

// The part of a parameter that some ranks store between steps, the same on each. Boxes of the whole
// parameter, in the order in which the ranks' shards have their elements: one, or in layout flat
// those of a range of elements. `shard_begin`: index of the first element in the shard.
struct HeldPart {
  RankSet ranks;
  std::vector<Box> boxes;  // empty: no elements
  int64_t shard_begin = 0;
  int64_t padding = 0;  // elements of the shard that follow and belong to no parameter

  [[nodiscard]] int64_t numel() const;
  // [begin, end) in the flattened parameter of this shape, if the elements follow one another
  // there. There must be some.
  [[nodiscard]] std::optional<std::pair<int64_t, int64_t>> elements(
      std::span<const int64_t> shape) const;
  friend bool operator==(const HeldPart&, const HeldPart&) = default;
};

// Elements of the shards of some ranks that belong to no parameter: alignment and end padding.
struct HeldPadding {
  RankSet ranks;
  int64_t shard_begin = 0, numel = 0;
  friend bool operator==(const HeldPadding&, const HeldPadding&) = default;
};

// A parameter and the unit that owns it.
struct ParameterPlace {
  uint32_t parameter = 0;  // index into ModuleTree::parameters
  UnitId unit = kNoUnit;   // kNoUnit: ignored by the plan, in no shard
  uint32_t index = 0;      // index within the unit
};

// Every parameter of the model once: those of each unit in the unit's order, then the ignored ones.
[[nodiscard]] std::vector<ParameterPlace> parameter_places(const ResolvedPlan& plan);

// Which elements each rank of a plan stores between steps. The mesh divides a parameter first
// (plan::Placement); then FSDP shards each rank's part.
//
// Units      elements of parameters and of units' shards.
// Ownership  refers to the plan, which must outlive it.
// Threads    const members from any thread.
class Ownership {
 public:
  Ownership() = default;  // of no plan: only for assignment
  explicit Ownership(const ResolvedPlan& plan);

  // All parts of a parameter that hold elements, in the order of its elements. Ranks that are in no
  // part store nothing of it.
  [[nodiscard]] std::vector<HeldPart> parts(const ParameterPlace& place) const;
  // The part that the rank holds.
  [[nodiscard]] HeldPart part(const ParameterPlace& place, int64_t rank) const;
  [[nodiscard]] std::vector<HeldPadding> padding(UnitId unit) const;

 private:
  // The group that divides parameters of the unit, with one layout for each of its positions.
  struct Divided {
    mesh::Group by;
    std::vector<ShardLayout> layouts;
    bool uneven = false;  // the layouts differ
  };
  [[nodiscard]] HeldPart held(const ParameterPlace& place, int64_t shard, int64_t position) const;
  // Whether ranks at other positions of the group that divides the unit hold other parts.
  [[nodiscard]] bool apart(const ParameterPlace& place) const;
  [[nodiscard]] RankSet holders(UnitId unit, int64_t shard, int64_t position, bool apart) const;

  const ResolvedPlan* plan_ = nullptr;
  std::vector<Divided> units_;  // by unit
};

}  // namespace shardlens::plan
