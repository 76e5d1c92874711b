#pragma once

#include "sim/hardware/hardware_spec.h"

namespace shardlens::sim {

// The same GPUs with another power limit, in watts, which their vendor's power_watts must be known
// for; or with one that is not known, somewhere from `least` to `most`, all equally likely.
//
// The clock follows the power limit: what an idle GPU needs stays, the rest grows with frequency
// and the square of the voltage, which rises with frequency, so with its cube. Products and
// attention become slower by the cube root of the ratio of what the limits leave, memory and links
// stay. Of limits that are not known the middle one is taken. The range of the clock is that of all
// these limits and of exponents from 0.15 to 0.6. Errors: InputError if power_watts is not known,
// or for a limit above it or below a fifth of it.
[[nodiscard]] HardwareSpec with_power_limit(HardwareSpec hardware, double least, double most);
[[nodiscard]] HardwareSpec with_power_limit(HardwareSpec hardware, double watts);

// What a GPU needs without work, in parts of its vendor's limit.
// Source  nvidia-smi with nothing running: 192 of 1000 W (B200, TensorRT-LLM issue 10278), 79 of
//         700 W (ansible-slurm-appliance pull request 975), 80 of 700 W (H200,
//         api.serialalice.pt/alice-benchmark).
inline constexpr double kIdlePower = 0.15;

}  // namespace shardlens::sim
