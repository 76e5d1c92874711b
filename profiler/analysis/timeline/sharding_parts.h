#pragma once

#include "profiler/analysis/timeline/timeline.h"

namespace shardlens::analysis {

// The part of a unit's figures that a purpose belongs to. `backward`: where a unit's parameters are
// gathered.
[[nodiscard]] inline UnitPart part_of(Purpose purpose, bool backward) {
  switch (purpose) {
    case Purpose::kGatherParameters:
      return backward ? UnitPart::kAllGatherBackward : UnitPart::kAllGatherForward;
    case Purpose::kReduceGradients:
      return UnitPart::kReduceScatter;
    case Purpose::kReduceReplicas:
      return UnitPart::kAllReduce;
    default:
      return UnitPart::kOther;
  }
}

inline void set_purpose(Collective& c, Purpose purpose, bool backward) {
  c.purpose = purpose;
  c.part = part_of(purpose, backward);
}

}  // namespace shardlens::analysis
