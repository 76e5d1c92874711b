#pragma once

#include <optional>
#include <span>

#include "core/schedule/planned/planned.h"
#include "sim/engine/simulator.h"

namespace shardlens::sim {

// Number of microbatches that a planned step must have before further ones can be extrapolated from
// its middle ones: the first, two in the middle, the last.
inline constexpr int kPlannedMicrobatches = 4;

// How much longer a step of kPlannedMicrobatches takes with one more microbatch in the middle;
// nullopt: its middle microbatches do not take the same times.
//
// [Note: Alike microbatches] Suppose that everything on the device happens P later in the third
// microbatch than in the second, and everything on the host H later. A next microbatch follows from
// the third as the third follows from the second, since only the time has changed. So each further
// microbatch adds P in two cases: the host, too, is P later each time (H = P); or the host gets
// further ahead of the device (H < P), and from the third microbatch on no work started as soon as
// the host issued it, so later work will not either. The last microbatch only has to begin like the
// third, in its forward.
[[nodiscard]] std::optional<Nanoseconds> period_of(const schedule::PlannedStep& step,
                                                   std::span<const ItemTimes> items);

}  // namespace shardlens::sim
