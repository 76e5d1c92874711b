#pragma once

#include <cstddef>
#include <optional>

#include "sim/calibrate/calibration.h"
#include "sim/calibrate/observation.h"

namespace shardlens::sim {

// Where ranks have unequal work (Observation::of_ranks), the simulator itself finds how long each
// waits for the others. Leaves in `out`, which was calibrated from the observation, only the rest
// of the measured waits: its sum for a step of a rank is divided between the collectives as they
// were measured. Nothing is changed for ranks that are alike.
void take_off_uneven_waits(const Observation& of, Calibration& out);

// The time that collectives of the rank waited for later ranks, in a mean observed step; nullopt:
// collectives were not matched between ranks, or no step of the rank was observed.
[[nodiscard]] std::optional<Nanoseconds> measured_wait(const Observation& of, size_t rank);

}  // namespace shardlens::sim
