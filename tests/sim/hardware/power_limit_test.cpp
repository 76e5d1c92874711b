#include "sim/hardware/power_limit.h"

#include <cmath>

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace shardlens::sim::test {
namespace {

HardwareSpec of_1000_watts() {
  HardwareSpec spec = load_hardware("8xH200");
  spec.gpu.power_watts = 1000;
  spec.ranges = {};
  return spec;
}

double clock_of(const HardwareSpec& spec) {
  return spec.software.matrix_rate / of_1000_watts().software.matrix_rate;
}

// By hand: an idle GPU needs 150 of 1000 W; an eighth of the other 850 W leaves half of the clock.
// Memory and links are as fast as before.
TEST(PowerLimitTest, SlowsProductsByTheCubeRootOfThePowerAboveAnIdleGpus) {
  const HardwareSpec spec = of_1000_watts(), limited = with_power_limit(spec, 150 + 850.0 / 8);
  EXPECT_NEAR(clock_of(limited), 0.5, 1e-12);
  EXPECT_NEAR(limited.software.attention_rate / spec.software.attention_rate, 0.5, 1e-12);
  EXPECT_EQ(limited.gpu.memory_gbps, spec.gpu.memory_gbps);
  EXPECT_EQ(limited.software.collective_rate, spec.software.collective_rate);
  EXPECT_EQ(with_power_limit(spec, 1000).ranges, spec.ranges);
  EXPECT_THROW((void)with_power_limit(spec, 1001), InputError);
  EXPECT_THROW((void)with_power_limit(spec, 199), InputError);
  HardwareSpec unknown = spec;
  unknown.gpu.power_watts = 0;
  EXPECT_THROW((void)with_power_limit(unknown, 500), InputError);
}

// Of one limit the range is that of the exponent, 0.15 to 0.6 instead of a third.
TEST(PowerLimitTest, TheClockIsAsUncertainAsItsExponent) {
  const ConstantRange clock = with_power_limit(of_1000_watts(), 575).ranges.clock;
  EXPECT_NEAR(clock.slower, (0.6 - 1.0 / 3) * std::log(2), 0.01);
  EXPECT_NEAR(clock.faster, (1.0 / 3 - 0.15) * std::log(2), 0.01);
}

// Limits from 200 to 1000 W: the middle one is 600 W. 200 000 random limits and exponents, all
// limits and all logarithms of the exponent equally likely, are in nine of ten cases 0.0133 to
// 0.845 slower than the vendor's clock, as logarithms.
TEST(PowerLimitTest, OneThatIsNotKnownIsTheMiddleOneWithTheRangeOfAll) {
  const HardwareSpec any = with_power_limit(of_1000_watts(), 200, 1000);
  const double middle = std::log(850.0 / 450) / 3;
  EXPECT_NEAR(clock_of(any), std::exp(-middle), 1e-12);
  EXPECT_NEAR(any.ranges.clock.slower, 0.845 - middle, 0.02);
  EXPECT_NEAR(any.ranges.clock.faster, middle - 0.0133, 0.005);
  EXPECT_EQ(any.ranges.memory, ConstantRange{});
  EXPECT_THROW((void)with_power_limit(of_1000_watts(), 700, 600), InputError);
  EXPECT_THROW((void)with_power_limit(of_1000_watts(), 199, 600), InputError);
}

}  // namespace
}  // namespace shardlens::sim::test
