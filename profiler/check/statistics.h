#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace shardlens::check {

// The statistics of `check` for two sets of runs, with one value per run. Pure functions without
// random numbers. docs/use/gate-ci.md explains their meaning for a verdict.

// Student's t distribution. `df` > 0, may be fractional.
[[nodiscard]] double t_cdf(double t, double df);
// The value that is exceeded with probability `tail` (0 < tail < 1).
[[nodiscard]] double t_quantile(double tail, double df);
[[nodiscard]] double normal_cdf(double z);

// The range [first, last) of `count` sorted values that remains without the lowest and the highest
// quarter (rounded down).
[[nodiscard]] std::pair<size_t, size_t> middle_half(size_t count);
// Mean of the middle half (interquartile mean). Like the median it is insensitive to outliers, but
// the mean of a sum equals the sum of the means. 0 without values.
[[nodiscard]] double midmean(std::vector<double> values);

// How many of `count` sorted values lie outside the interval of the median on each side: from the
// value at this index to the one as far from the end. At most a share `tail` (below 0.5) of all
// samples have their whole interval below the true median, and as many above it, because the number
// of values below the true median is binomial. 2^-count is at most `tail`.
[[nodiscard]] size_t outside_median_interval(size_t count, double tail);

// The number of warm-up steps at the start of a run: all before the first three in a row that are
// within three deviations (1.4826 times the median distance from the median), or 5 %, of the
// median. Median and deviation are those of the second half of the steps. At most half of the
// steps.
[[nodiscard]] size_t warmup_steps(std::span<const double> steps);

// How far the candidate's runs are above the baseline's.
struct Effect {
  double baseline = 0, candidate = 0;  // means over runs
  double change = 0;                   // candidate - baseline
  double standard_error = 0;           // standard error of `change`
  double df = 0;                       // degrees of freedom of `standard_error`; 0: too few runs

  [[nodiscard]] bool measurable() const { return df > 0; }
  // The probability of a change this large or larger if there is no true change.
  [[nodiscard]] double p_increase() const;
  // Half the width of the confidence interval with probability `tail` outside it on either side.
  [[nodiscard]] double half_width(double tail) const;
};

// For independent runs: Student's test with the pooled deviation if both sides have equally many
// runs, otherwise Welch's test. Not measurable() with fewer than two runs on a side.
[[nodiscard]] Effect effect_of_runs(std::span<const double> baseline,
                                    std::span<const double> candidate);
// For runs made in pairs, one after the other, so that common effects (a machine that warms up)
// cancel out: the test of the differences. Equal numbers; at least two pairs.
[[nodiscard]] Effect effect_of_pairs(std::span<const double> baseline,
                                     std::span<const double> candidate);

// For runs of several sessions (another day, another machine of a kind), by session. Sessions
// differ more than the runs of one do, so their means are the observations. If the candidate's
// sessions have fewer runs than the baseline's, their greater scatter is added. Not measurable()
// with fewer than three sessions in all.
[[nodiscard]] Effect effect_of_sessions(const std::vector<std::vector<double>>& baseline,
                                        const std::vector<std::vector<double>>& candidate);

// Holm's step-down: the level at which each of the hypotheses is tested so that the probability
// of rejecting any true one stays below `alpha`, by index.
[[nodiscard]] std::vector<double> holm_levels(std::span<const double> p_values, double alpha);

// The probability that, for a true change of `change`, the measured change exceeds both `limit` and
// the confidence interval's half width. The measured change is normal around the true change with
// `effect`'s standard error.
[[nodiscard]] double power(double change, double limit, const Effect& effect, double tail);
// The smallest true change that is detected with probability `wanted`.
[[nodiscard]] double detectable_change(double limit,
                                       const Effect& effect,
                                       double tail,
                                       double wanted);

// How an effect's uncertainty falls with more runs (or, of several sessions, more baseline
// sessions).
struct Growth {
  enum class Of : uint8_t { kRuns, kPairs, kSessions };
  Of of = Of::kRuns;
  double now = 0;     // runs of each side, pairs, or sessions of the baseline
  double others = 0;  // sessions of the candidate
  // The standard error and degrees of freedom of `effect` with `count` instead of `now`.
  [[nodiscard]] Effect with(Effect effect, double count) const;
};
// The smallest count with which a change of the size that was measured would be a regression (above
// `limit` and the noise at `tail`) or pass (its upper bound at `pass_tail` below `limit`); nullopt:
// none up to a thousand.
[[nodiscard]] std::optional<int64_t> count_to_decide(
    const Effect& effect, const Growth& growth, double limit, double tail, double pass_tail);

// Values, and how often each occurs (at least once): a file can state more of them than fit into
// memory one by one.
using Sample = std::map<double, int64_t>;
[[nodiscard]] int64_t size_of(const Sample& sample);
// The value at n / 2 of n values in order. `sample` is not empty.
[[nodiscard]] double middle_of(const Sample& sample);

// The largest distance between the distribution functions of two samples (Kolmogorov and Smirnov's
// D), 0 to 1; and the distance that two samples of the same distribution exceed with probability
// `alpha` at most, approximately, given their sizes.
[[nodiscard]] double distribution_distance(const Sample& a, const Sample& b);
[[nodiscard]] double critical_distance(int64_t a, int64_t b, double alpha);

// Sequential test: the part of `alpha` that may be used at look `look` (1 … looks) of `looks`. The
// parts sum to alpha, so by the union bound the error probability of all looks together is at most
// alpha. Early looks get little of it, because they have few runs.
[[nodiscard]] double alpha_of_look(int look, int looks, double alpha);

}  // namespace shardlens::check
