#pragma once

#include <optional>
#include <span>

#include "core/schedule/planned.h"
#include "sim/engine/simulator.h"

namespace shardlens::sim {

// How many microbatches a planned step needs that more like its middle ones are to be added to: the
// first, two in the middle, the last.
inline constexpr int kPlannedMicrobatches = 4;

// How much longer a step of kPlannedMicrobatches takes with one more in the middle; nullopt: its
// middle ones are not alike.
//
// [Note: Alike microbatches] Let the third take the same time for each thing as the second, each
// begun the same P later, the host H later. What a fourth does follows from the third as that from
// the second, if nothing but time has changed: so it begins P after the third, and so on, if the
// host, too, is P later each time; or if it gains on the device (H < P) and from the third on
// nothing began when the host issued it, for then it will not later either. The last one need
// begin only like the third, as its forward does.
[[nodiscard]] std::optional<Nanoseconds> period_of(const schedule::PlannedStep& step,
                                                   std::span<const ItemTimes> items);

}  // namespace shardlens::sim
