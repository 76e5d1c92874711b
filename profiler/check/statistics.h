#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace shardlens::check {

// The statistics of `check`: two sets of runs, one value per run. Pure functions of their
// arguments, without random numbers. docs/ci.md says what they mean for a verdict.

// Student's t distribution. `df` > 0, may be fractional.
[[nodiscard]] double t_cdf(double t, double df);
// The value that is exceeded with probability `tail` (0 < tail < 1).
[[nodiscard]] double t_quantile(double tail, double df);
[[nodiscard]] double normal_cdf(double z);

// Which of `count` values sorted by size make up their middle: without the lowest and the highest
// quarter (rounded down), [first, last).
[[nodiscard]] std::pair<size_t, size_t> middle_half(size_t count);
// Mean of the middle half (interquartile mean): like the median blind to outliers, but a sum of
// parts stays the sum of their means. 0 of no values.
[[nodiscard]] double midmean(std::vector<double> values);

// Steps at the begin of a run that are warm-up: all before the first three in a row that lie within
// three deviations (1.4826 times the median distance from the median), or 5 %, of the median, both
// taken over the second half; at most half of the steps.
[[nodiscard]] size_t warmup_steps(std::span<const double> steps);

// How far the candidate's runs lie above the baseline's.
struct Effect {
  double baseline = 0, candidate = 0;  // means over runs
  double change = 0;                   // candidate - baseline
  double standard_error = 0;           // of `change`
  double df = 0;                       // of `standard_error`; 0: too few runs to know it

  [[nodiscard]] bool measurable() const { return df > 0; }
  // Probability of a change this large, or larger, where there is none.
  [[nodiscard]] double p_increase() const;
  // Half of the confidence interval that leaves out `tail` on either side.
  [[nodiscard]] double half_width(double tail) const;
};

// Independent runs: Student's test with the pooled deviation where both sides have as many runs,
// Welch's otherwise. At least two runs a side, else nothing is measurable().
[[nodiscard]] Effect effect_of_runs(std::span<const double> baseline,
                                    std::span<const double> candidate);
// Runs taken in pairs, one after the other, so that what both share (a machine that warms up)
// drops out: the test of the differences. Equal numbers; at least two pairs.
[[nodiscard]] Effect effect_of_pairs(std::span<const double> baseline,
                                     std::span<const double> candidate);

// Holm's step-down: the level at which each of the hypotheses is tested so that the probability
// of rejecting any true one stays below `alpha`, by index.
[[nodiscard]] std::vector<double> holm_levels(std::span<const double> p_values, double alpha);

// Probability that a true change of `change` exceeds both `limit` and the confidence interval's
// half width, for deviations normal about it with `effect`'s standard error.
[[nodiscard]] double power(double change, double limit, const Effect& effect, double tail);
// The smallest true change that is found with probability `wanted`.
[[nodiscard]] double detectable_change(double limit,
                                       const Effect& effect,
                                       double tail,
                                       double wanted);

// Sequential test: how much of `alpha` may be spent at look `look` (1 … looks) of `looks`. The
// shares sum to alpha, so by the union bound all looks together err no more often; early looks get
// little, because few runs say little.
[[nodiscard]] double alpha_of_look(int look, int looks, double alpha);

}  // namespace shardlens::check
