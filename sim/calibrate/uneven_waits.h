#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "sim/calibrate/calibration.h"
#include "sim/calibrate/observation.h"

namespace shardlens::sim {

// Settles the waits of `out`, which was calibrated from the observations. They are of the kinds
// that FSDP issues, so those of all-to-alls are divided between these, as they were measured. Where
// ranks have unequal work (Observation::of_ranks) the simulator itself finds how long each waits
// for the others, and only the rest is left. Without all-to-alls and unequal work nothing changes.
void settle_waits(std::span<const Observation> observations, Calibration& out);

// The time that collectives of the rank waited for later ranks, in a mean observed step; nullopt:
// collectives were not matched between ranks, or no step of the rank was observed.
[[nodiscard]] std::optional<Nanoseconds> measured_wait(const Observation& of, size_t rank);

}  // namespace shardlens::sim
