// Quantiles compared with printed tables, rates with simulations of fixed seeds.
#include "profiler/check/statistics.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace shardlens::check {
namespace {

TEST(StatisticsTest, QuantilesAreThoseOfPrintedTables) {
  // Fisher & Yates, table III (two-sided 10 %, 5 %, 1 %).
  EXPECT_NEAR(t_quantile(0.05, 1), 6.314, 5e-4);
  EXPECT_NEAR(t_quantile(0.005, 2), 9.925, 5e-4);
  EXPECT_NEAR(t_quantile(0.005, 4), 4.604, 5e-4);
  EXPECT_NEAR(t_quantile(0.025, 10), 2.228, 5e-4);
  EXPECT_NEAR(t_quantile(0.005, 30), 2.750, 5e-4);
  EXPECT_NEAR(t_quantile(0.995, 30), -2.750, 5e-4);
  EXPECT_NEAR(t_quantile(0.005, 1e6), 2.5758, 5e-4);  // the normal distribution's
  EXPECT_NEAR(t_cdf(0, 3), 0.5, 1e-12);
  EXPECT_NEAR(t_cdf(1, 1), 0.75, 1e-12);  // Cauchy: 1/2 + atan(t)/π
  EXPECT_NEAR(normal_cdf(1.959964), 0.975, 1e-6);
}

TEST(StatisticsTest, MidmeanIsTheMeanOfTheMiddleHalf) {
  EXPECT_DOUBLE_EQ(midmean({7, 1, 1000, 3, 5, 2, 4, 6}), 4.5);  // of 3, 4, 5, 6
  EXPECT_DOUBLE_EQ(midmean({5}), 5);
  EXPECT_DOUBLE_EQ(midmean({}), 0);
  std::vector<double> steps(20, 100.0);
  steps[7] = 1000;  // one step ten times slower
  EXPECT_DOUBLE_EQ(midmean(steps), 100);
}

TEST(StatisticsTest, IntervalOfTheMedianEndsAtBinomialQuantiles) {
  // The largest k with (n over 0) + … + (n over k) <= 0.05 · 2^n, in whole numbers.
  EXPECT_EQ(outside_median_interval(5, 0.05), 0U);
  EXPECT_EQ(outside_median_interval(8, 0.05), 1U);
  EXPECT_EQ(outside_median_interval(20, 0.05), 5U);
  EXPECT_EQ(outside_median_interval(100, 0.05), 41U);
  EXPECT_EQ(outside_median_interval(2000, 0.05), 962U);  // 2^-2000 is no double
  EXPECT_EQ(outside_median_interval(13'000, 0.05), 6405U);
}

TEST(StatisticsTest, WarmupEndsWithThreeSettledStepsInARow) {
  EXPECT_EQ(warmup_steps(std::vector<double>{90, 40, 20, 10, 10.1, 9.9, 10, 10.1, 9.9, 10, 10, 10}),
            3U);
  EXPECT_EQ(warmup_steps(std::vector<double>{10, 10.1, 9.9, 10, 10.1, 9.9, 10, 10}), 0U);
  EXPECT_EQ(warmup_steps(std::vector<double>{50, 10, 10, 10, 10, 10, 10, 10}), 1U);
  EXPECT_EQ(warmup_steps(std::vector<double>{5, 7}), 0U);
  // Never settled: at most half.
  EXPECT_EQ(warmup_steps(std::vector<double>{80, 70, 60, 50, 10, 10, 10, 10}), 4U);
}

TEST(StatisticsTest, EffectOfRunsIsStudentsTest) {
  // Student's sleep data (1908), group 1 and 2: t = 1.8608 with 18 degrees; as pairs 4.0621 with 9.
  const std::vector<double> first{0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0};
  const std::vector<double> second{1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4};
  const Effect runs = effect_of_runs(first, second);
  EXPECT_NEAR(runs.change, 1.58, 1e-12);
  EXPECT_NEAR(runs.change / runs.standard_error, 1.8608, 5e-5);
  EXPECT_DOUBLE_EQ(runs.df, 18);
  EXPECT_NEAR(runs.p_increase(), 0.07919 / 2, 5e-6);
  const Effect pairs = effect_of_pairs(first, second);
  EXPECT_NEAR(pairs.change / pairs.standard_error, 4.0621, 5e-5);
  EXPECT_DOUBLE_EQ(pairs.df, 9);
  EXPECT_NEAR(pairs.p_increase(), 0.002833 / 2, 5e-7);
}

TEST(StatisticsTest, OneRunASideMeasuresNothing) {
  const Effect effect = effect_of_runs(std::vector<double>{1}, std::vector<double>{2});
  EXPECT_FALSE(effect.measurable());
  EXPECT_EQ(effect.p_increase(), 1);
  EXPECT_EQ(effect.half_width(0.005), std::numeric_limits<double>::infinity());
  EXPECT_EQ(power(100, 1, effect, 0.005), 0);
}

TEST(StatisticsTest, HolmTestsTheNextOnlyAfterARejection) {
  EXPECT_EQ(holm_levels(std::vector<double>{0.004, 0.009}, 0.01),
            (std::vector<double>{0.005, 0.01}));
  EXPECT_EQ(holm_levels(std::vector<double>{0.009, 0.004}, 0.01),
            (std::vector<double>{0.01, 0.005}));
  EXPECT_EQ(holm_levels(std::vector<double>{0.006, 0.009}, 0.01),
            (std::vector<double>{0.005, 0.005}));
  EXPECT_EQ(holm_levels(std::vector<double>{0.5}, 0.01), (std::vector<double>{0.01}));
}

std::vector<double> draw(std::mt19937_64& random, size_t runs, double center, double deviation) {
  std::normal_distribution<double> normal(center, deviation);
  std::vector<double> values(runs);
  for (double& v : values) {
    v = normal(random);
  }
  return values;
}

// Realistic runs: step times are skewed and correlated with the step before, and each run has its
// own level. Returns the run's midmean, which is what is tested.
double run_value(std::mt19937_64& random, double level) {
  std::normal_distribution<double> normal;
  std::vector<double> steps;
  double last = normal(random);
  for (int i = 0; i < 20; ++i) {
    last = 0.5 * last + std::sqrt(0.75) * normal(random);
    steps.push_back(level * std::exp(0.03 * last));
  }
  return midmean(std::move(steps)) * (1 + 0.005 * normal(random));
}

// How often Holm's test of two correlated metrics finds a change where nothing changed.
TEST(StatisticsTest, FalseAlarmsStayAtTheirDesignRate) {
  constexpr int kPairs = 10000;
  constexpr double kAlpha = 0.01;
  for (const size_t runs : {size_t{3}, size_t{5}}) {
    std::mt19937_64 random(11 + runs);
    int alarms = 0;
    for (int pair = 0; pair < kPairs; ++pair) {
      std::vector<std::vector<double>> sides[2];
      for (auto& side : sides) {
        std::vector<double> step, exposed;
        for (size_t run = 0; run < runs; ++run) {
          const double value = run_value(random, 100);
          step.push_back(value);
          exposed.push_back(0.1 * value + run_value(random, 20));
        }
        side = {step, exposed};
      }
      std::vector<double> p;
      for (size_t metric = 0; metric < 2; ++metric) {
        p.push_back(effect_of_runs(sides[0][metric], sides[1][metric]).p_increase());
      }
      const std::vector<double> levels = holm_levels(p, kAlpha);
      alarms += p[0] <= levels[0] || p[1] <= levels[1] ? 1 : 0;
    }
    // At most three deviations of the count above the design rate, and not far below it either.
    const double rate = static_cast<double>(alarms) / kPairs;
    EXPECT_LE(rate, kAlpha + 3 * std::sqrt(kAlpha / kPairs)) << runs << " runs";
    EXPECT_GE(rate, 0.4 * kAlpha) << runs << " runs";
  }
}

TEST(StatisticsTest, ConfidenceIntervalsCoverTheTruth) {
  constexpr int kTrials = 10000;
  for (const bool equal : {true, false}) {
    std::mt19937_64 random(7);
    int covered = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      const Effect effect =
          effect_of_runs(draw(random, equal ? 4 : 10, 100, 1), draw(random, 4, 103, equal ? 1 : 3));
      covered += std::abs(effect.change - 3) <= effect.half_width(0.005) ? 1 : 0;
    }
    EXPECT_NEAR(static_cast<double>(covered) / kTrials, 0.99, equal ? 0.004 : 0.01)
        << equal;  // Welch's is known to cover a little less
  }
}

// The closed form compared with a simulation.
TEST(StatisticsTest, PowerIsWhatSimulationGives) {
  constexpr int kTrials = 10000;
  constexpr double kTail = 0.005;
  struct Case {
    size_t runs;
    double change, limit, deviation;
  };
  for (const Case& c : {Case{3, 3, 2, 0.3}, Case{3, 3, 2, 0.8}, Case{5, 2.5, 2, 0.7},
                        Case{5, 4, 0, 1.5}, Case{10, 1.0, 0.5, 0.6}}) {
    std::mt19937_64 random(23);
    const Effect truth{100, 100 + c.change, c.change,
                       c.deviation * std::sqrt(2.0 / static_cast<double>(c.runs)),
                       2 * static_cast<double>(c.runs) - 2};
    int found = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      const Effect effect = effect_of_runs(draw(random, c.runs, 100, c.deviation),
                                           draw(random, c.runs, 100 + c.change, c.deviation));
      found += effect.change > std::max(c.limit, effect.half_width(kTail)) ? 1 : 0;
    }
    EXPECT_NEAR(power(c.change, c.limit, truth, kTail), static_cast<double>(found) / kTrials, 0.012)
        << c.runs << " runs, change " << c.change << ", deviation " << c.deviation;
    const double detectable = detectable_change(c.limit, truth, kTail, 0.95);
    EXPECT_NEAR(power(detectable, c.limit, truth, kTail), 0.95, 1e-4);
    EXPECT_GT(detectable, c.limit);
  }
}

TEST(StatisticsTest, LooksTogetherKeepTheErrorRate) {
  constexpr int kLooks = 3, kFirst = 3, kTrials = 20000;
  constexpr double kAlpha = 0.01;
  double sum = 0;
  for (int look = 1; look <= kLooks; ++look) {
    sum += alpha_of_look(look, kLooks, kAlpha);
  }
  EXPECT_NEAR(sum, kAlpha, 1e-15);
  std::mt19937_64 random(3);
  int alarms = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    const auto a = draw(random, kFirst + kLooks - 1, 100, 1),
               b = draw(random, kFirst + kLooks - 1, 100, 1);
    for (int look = 1; look <= kLooks; ++look) {
      const auto pairs = static_cast<size_t>(kFirst + look - 1);
      const Effect effect = effect_of_pairs(std::span(a).first(pairs), std::span(b).first(pairs));
      if (effect.p_increase() <= alpha_of_look(look, kLooks, kAlpha)) {
        ++alarms;
        break;
      }
    }
  }
  const double rate = static_cast<double>(alarms) / kTrials;
  EXPECT_LE(rate, kAlpha + 3 * std::sqrt(kAlpha / kTrials));
  EXPECT_GE(rate, 0.5 * kAlpha);
}

// Means of sessions 10, 12, 14 and candidate 13: deviations -2, 0, 2; variance 8 / 2 = 4; error
// sqrt(4 · (1/3 + 1)).
TEST(StatisticsTest, SessionsAreTheObservations) {
  const Effect effect = effect_of_sessions({{9, 11}, {12, 12}, {13, 15}}, {{13, 13}});
  EXPECT_DOUBLE_EQ(effect.baseline, 12);
  EXPECT_DOUBLE_EQ(effect.change, 1);
  EXPECT_DOUBLE_EQ(effect.df, 2);
  EXPECT_DOUBLE_EQ(effect.standard_error, std::sqrt(4 * (1.0 / 3 + 1)));
  // A candidate of one run scatters more than a mean of two: the runs' variance within sessions is
  // (2 + 0 + 2) / 3, of which one run has half more than two.
  const Effect one = effect_of_sessions({{9, 11}, {12, 12}, {13, 15}}, {{13}});
  EXPECT_DOUBLE_EQ(one.standard_error, std::sqrt(4 * (1.0 / 3 + 1) + 4.0 / 3 / 2));
  EXPECT_FALSE(effect_of_sessions({{1, 2}}, {{3}}).measurable());
}

TEST(StatisticsTest, CountToDecide) {
  // A change of 1 ± 1 from 4 + 4 runs, limit 2: with n runs a side the error is sqrt(4 / n). The
  // bound is below 2 when t(0.05, 2n - 2) · sqrt(4 / n) < 1: 1.725 · 0.603 = 1.040 with 11 runs a
  // side, 1.717 · 0.577 = 0.991 with 12.
  const Effect effect{10, 11, 1, 1, 6};
  EXPECT_EQ(count_to_decide(effect, {Growth::Of::kRuns, 4, 0}, 2, 0.005, 0.05), 12);
  // Nothing decides about a change that equals the limit.
  EXPECT_EQ(count_to_decide({10, 12, 2, 1, 6}, {Growth::Of::kRuns, 4, 0}, 2, 0.005, 0.05),
            std::nullopt);
  // However many sessions the baseline has, that of the candidate remains one.
  EXPECT_EQ(count_to_decide({10, 11, 1, 1, 4}, {Growth::Of::kSessions, 5, 1}, 2, 0.005, 0.05),
            std::nullopt);
}

TEST(StatisticsTest, DistancesOfDistributions) {
  const Sample four{{1, 1}, {2, 1}, {3, 1}, {4, 1}};
  EXPECT_DOUBLE_EQ(distribution_distance(four, four), 0);
  EXPECT_DOUBLE_EQ(distribution_distance(four, {{3, 1}, {4, 1}, {5, 1}, {6, 1}}), 0.5);
  EXPECT_DOUBLE_EQ(distribution_distance({{1, 2}}, {{2, 3}}), 1);
  EXPECT_DOUBLE_EQ(distribution_distance({{1, 1}, {2, 3}}, {{1, 3}, {2, 1}}), 0.5);
  EXPECT_EQ(size_of(four), 4);
  EXPECT_EQ(middle_of(four), 3);
  EXPECT_EQ(middle_of({{1, 2}, {7, 1}}), 1);
  EXPECT_EQ(middle_of({{1, 1}, {7, int64_t{1} << 40}}), 7);
  // Kolmogorov's 1.358 for 5 %, two samples of 100: 1.358 · sqrt(200 / 10000).
  EXPECT_NEAR(critical_distance(100, 100, 0.05), 1.358 * std::sqrt(0.02), 1e-3);
}

}  // namespace
}  // namespace shardlens::check
