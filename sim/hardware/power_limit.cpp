#include "sim/hardware/power_limit.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"

namespace shardlens::sim {
namespace {

// The clock by the power: the cube root, and in nine of ten cases between hardly any dependence and
// half of that of the power.
constexpr double kExponent = 1.0 / 3, kLeastExponent = 0.15, kMostExponent = 0.6;
constexpr double kLeastLimit = 0.2;              // in parts of the vendor's
constexpr double kTail = 0.05;                   // beyond each end of a 90 % interval
constexpr size_t kLimits = 64, kExponents = 64;  // that are tried

// How much less power the limit leaves than the vendor's, as a logarithm.
double lost(double watts, double stated) {
  return std::log((1 - kIdlePower) * stated / (watts - kIdlePower * stated));
}

// How much slower than predicted the clock may be at the ends, as logarithms: of limits, and of
// logarithms of the exponent, that are all equally likely.
ConstantRange range_of_clock(double least, double most, double stated, double predicted) {
  const auto at = [](size_t i, size_t of) {
    return (static_cast<double>(i) + 0.5) / static_cast<double>(of);
  };
  const double width = std::log(kMostExponent / kLeastExponent) / (1 - 2 * kTail);
  std::vector<double> slower;
  for (size_t i = 0; i < kLimits; ++i) {
    const double power = lost(least + (most - least) * at(i, kLimits), stated);
    for (size_t k = 0; k < kExponents; ++k) {
      const double exponent = kLeastExponent * std::exp(width * (at(k, kExponents) - kTail));
      slower.push_back(exponent * power - predicted);
    }
  }
  std::sort(slower.begin(), slower.end());
  const auto tail = static_cast<size_t>(kTail * static_cast<double>(slower.size()));
  return {std::max(0.0, -slower[tail]), std::max(0.0, slower[slower.size() - 1 - tail])};
}

}  // namespace

HardwareSpec with_power_limit(HardwareSpec hardware, double least, double most) {
  const double stated = hardware.gpu.power_watts;
  if (stated == 0) {
    throw InputError("--power-limit",
                     fmt::format("the power limit of {} is not known (no \"power_watts\" in the "
                                 "spec's \"gpu\")",
                                 hardware.gpu.name));
  }
  for (const double watts : {least, most}) {
    if (!(watts <= stated && watts >= kLeastLimit * stated)) {
      throw InputError("--power-limit",
                       fmt::format("{} W: expected {} to {} W, the limit of {}", watts,
                                   kLeastLimit * stated, stated, hardware.gpu.name));
    }
  }
  if (least > most) {
    throw InputError(
        "--power-limit",
        fmt::format("{0}:{1}: expected the smaller limit first, {1}:{0}", least, most));
  }
  const double predicted = kExponent * lost((least + most) / 2, stated);
  hardware.software.matrix_rate *= std::exp(-predicted);
  hardware.software.attention_rate *= std::exp(-predicted);
  hardware.ranges.clock =
      together(hardware.ranges.clock, range_of_clock(least, most, stated, predicted));
  return hardware;
}

HardwareSpec with_power_limit(HardwareSpec hardware, double watts) {
  return with_power_limit(std::move(hardware), watts, watts);
}

}  // namespace shardlens::sim
