#pragma once

#include <cstdint>

#include "core/workload/workload.h"

namespace shardlens::plan {

// Operators of all microbatches of a step: what is planned of each takes about 300 bytes. A search
// has several such steps in memory for each of its threads.
inline constexpr int64_t kMostOperators = 2'500'000;
inline constexpr int64_t kMostSearchedOperators = 200'000;

// Errors  InputError if a step of this many microbatches has more than `most` operators.
void require_step_size(const Workload& workload, int64_t microbatches, int64_t most);

}  // namespace shardlens::plan
