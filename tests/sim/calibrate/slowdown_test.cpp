#include "sim/calibrate/slowdown.h"

#include <random>

#include <gtest/gtest.h>

namespace shardlens::sim {
namespace {

std::optional<double> slowdown_of(const Samples& samples) {
  Slowdown slowdown;
  slowdown.add(samples);
  return slowdown.value();
}

// A sample of work of length `alone`: all but `before` of it runs during communication, which slows
// it by the factor `s`.
std::pair<double, double> partly(double alone, double before, double s) {
  const double beside = (alone - before) * s;
  return {before + beside, beside / (before + beside)};
}

TEST(Slowdown, IsExactWhereNothingIsNoise) {
  EXPECT_NEAR(
      *slowdown_of({{{100, 0}, {100, 0}, partly(100, 60, 1.6), partly(100, 20, 1.6), {160, 1}}}),
      1.6, 1e-12);
  // No sample without communication: the slowdown that leaves no correlation.
  EXPECT_NEAR(*slowdown_of({{partly(100, 60, 1.6), partly(100, 20, 1.6), {160, 1}, {160, 1}}}), 1.6,
              1e-12);
}

TEST(Slowdown, ShapesCountByTheirTime) {
  Slowdown both;
  both.add({{{10, 0}, {10, 0}, {40, 1}, {40, 1}}});
  both.add({{{1000, 0}, {1000, 0}, {1500, 1}, {1500, 1}}});
  EXPECT_NEAR(*both.value(), (2 * 40 + 2 * 1500) / (2 * 10 + 2 * 1000.0), 1e-12);
}

TEST(Slowdown, StaysBetweenOneAndFour) {
  EXPECT_EQ(slowdown_of({{{100, 0}, {100, 0}, {90, 1}, {90, 1}}}), 1);
  EXPECT_EQ(slowdown_of({{{100, 0}, {100, 0}, {900, 1}, {900, 1}}}), 4);
}

TEST(Slowdown, SaysWhenSamplesTellNothing) {
  EXPECT_EQ(slowdown_of({}), std::nullopt);
  EXPECT_EQ(slowdown_of({{{100, 0}, {100, 0}, {100, 0}, {100, 0}}}), std::nullopt);
  EXPECT_EQ(slowdown_of({{{150, 1}, {150, 1}, {150, 1}, {150, 1}}}), std::nullopt);
  EXPECT_EQ(slowdown_of({{{100, 0}, {150, 1}}}), std::nullopt);
}

TEST(Samples, ThoseHeldUpAloneAreReleased) {
  Samples samples{{{500, 0}, {520, 0}, {510, 0}, {4500, 0}, {6000, 0.5}, {1490, 0}}};
  EXPECT_EQ(samples.release(), 4500 - 520);  // not 6000, during communication, nor 1490, too short
  EXPECT_EQ(samples.each[3], (std::pair<double, double>{520, 0}));
  Samples short_ones{{{5, 0}, {5, 0}, {5, 0}, {500, 0}}};
  EXPECT_EQ(short_ones.release(), 0);
  Samples few{{{500, 0}, {4500, 0}}};
  EXPECT_EQ(few.release(), 0);
}

// Threads that share cores: during communication, one sample in twenty is delayed by 5 times its
// length, which is 1.25 on average. Work that ends after communication has begun counts in part.
TEST(Slowdown, CountsWhatIsHeldUp) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> where(0, 1);
  Samples samples;
  for (int i = 0; i < 40'000; ++i) {
    // Without communication, partly with it, and during it.
    const double before = i % 4 == 0 ? 1 : i % 4 == 1 ? where(random) : 0;
    const double held = where(random) < 0.05 * (1 - before) ? 5 : 0;
    const double beside = 1 - before + held;
    samples.each.emplace_back(before + beside, beside / (before + beside));
  }
  EXPECT_NEAR(*slowdown_of(samples), 1.25, 0.02);
  EXPECT_NEAR(samples.mean_alone(*slowdown_of(samples)), 1, 0.001);
}

}  // namespace
}  // namespace shardlens::sim
