#include "profiler/check/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <boost/math/distributions/binomial.hpp>
#include <boost/math/distributions/students_t.hpp>

#include "core/base/median.h"

namespace shardlens::check {
namespace {

// What is not a number, or out of range, gives results that are not numbers, and no exception.
using Student = boost::math::students_t_distribution<
    double,
    boost::math::policies::policy<
        boost::math::policies::domain_error<boost::math::policies::ignore_error>,
        boost::math::policies::overflow_error<boost::math::policies::ignore_error>>>;

double mean(std::span<const double> values) {
  return values.empty() ? 0
                        : std::accumulate(values.begin(), values.end(), 0.0) /
                              static_cast<double>(values.size());
}

double squared_deviations(std::span<const double> values) {
  const double center = mean(values);
  double sum = 0;
  for (const double v : values) {
    sum += (v - center) * (v - center);
  }
  return sum;
}

}  // namespace

double normal_cdf(double z) {
  return 0.5 * std::erfc(-z / std::sqrt(2.0));
}

double t_cdf(double t, double df) {
  return boost::math::cdf(Student(df), t);
}

double t_quantile(double tail, double df) {
  return boost::math::quantile(boost::math::complement(Student(df), tail));
}

std::pair<size_t, size_t> middle_half(size_t count) {
  return {count / 4, count - count / 4};
}

double midmean(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto [first, last] = middle_half(values.size());
  return mean(std::span(values).subspan(first, last - first));
}

size_t outside_median_interval(size_t count, double tail) {
  // By default Boost rounds a quantile in the lower half down.
  const boost::math::binomial values_below(static_cast<double>(count), 0.5);
  return static_cast<size_t>(boost::math::quantile(values_below, tail));
}

size_t warmup_steps(std::span<const double> steps) {
  constexpr size_t kInARow = 3;
  constexpr double kDeviations = 3, kMadToDeviation = 1.4826, kSame = 0.05;
  const size_t half = steps.size() / 2;
  if (half < kInARow) {
    return 0;
  }
  std::vector<double> settled(steps.begin() + static_cast<std::ptrdiff_t>(half), steps.end());
  const double center = median(settled);
  std::vector<double> distances;
  for (const double v : settled) {
    distances.push_back(std::abs(v - center));
  }
  const double band = std::max(kDeviations * kMadToDeviation * median(distances), kSame * center);
  size_t in_a_row = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    in_a_row = std::abs(steps[i] - center) <= band ? in_a_row + 1 : 0;
    if (in_a_row == kInARow) {
      return std::min(i + 1 - kInARow, half);
    }
  }
  return half;
}

double Effect::p_increase() const {
  if (!measurable()) {
    return 1;
  }
  if (standard_error == 0) {
    return change > 0 ? 0 : 1;
  }
  return t_cdf(-change / standard_error, df);
}

double Effect::half_width(double tail) const {
  return measurable() ? t_quantile(tail, df) * standard_error
                      : std::numeric_limits<double>::infinity();
}

Effect effect_of_runs(std::span<const double> baseline, std::span<const double> candidate) {
  Effect effect{mean(baseline), mean(candidate), 0, 0, 0};
  effect.change = effect.candidate - effect.baseline;
  const auto n = static_cast<double>(baseline.size()), m = static_cast<double>(candidate.size());
  if (n < 2 || m < 2) {
    return effect;
  }
  const double a = squared_deviations(baseline) / (n - 1) / n,
               b = squared_deviations(candidate) / (m - 1) / m;
  effect.standard_error = std::sqrt(a + b);  // for n = m, equal to that of the pooled deviation
  effect.df =
      n == m || a + b == 0 ? n + m - 2 : (a + b) * (a + b) / (a * a / (n - 1) + b * b / (m - 1));
  return effect;
}

Effect effect_of_pairs(std::span<const double> baseline, std::span<const double> candidate) {
  Effect effect{mean(baseline), mean(candidate), 0, 0, 0};
  std::vector<double> differences;
  for (size_t i = 0; i < std::min(baseline.size(), candidate.size()); ++i) {
    differences.push_back(candidate[i] - baseline[i]);
  }
  effect.change = mean(differences);
  const auto n = static_cast<double>(differences.size());
  if (n >= 2) {
    effect.standard_error = std::sqrt(squared_deviations(differences) / (n - 1) / n);
    effect.df = n - 1;
  }
  return effect;
}

Effect effect_of_sessions(const std::vector<std::vector<double>>& baseline,
                          const std::vector<std::vector<double>>& candidate) {
  struct Side {
    std::vector<double> means;
    double within = 0, within_df = 0;  // squared deviations from the means of sessions
    double per_run = 0;                // mean over sessions of 1 / runs
  };
  const auto side_of = [](const std::vector<std::vector<double>>& sessions) {
    Side side;
    for (const std::vector<double>& session : sessions) {
      side.means.push_back(mean(session));
      side.within += squared_deviations(session);
      side.within_df += static_cast<double>(session.size()) - 1;
      side.per_run += 1 / static_cast<double>(session.size() * sessions.size());
    }
    return side;
  };
  const Side a = side_of(baseline), b = side_of(candidate);
  Effect effect{mean(a.means), mean(b.means), 0, 0, 0};
  effect.change = effect.candidate - effect.baseline;
  const auto n = static_cast<double>(a.means.size()), m = static_cast<double>(b.means.size());
  if (n < 1 || m < 1 || n + m < 3) {
    return effect;
  }
  const double of_means = (squared_deviations(a.means) + squared_deviations(b.means)) / (n + m - 2);
  const double df_of_runs = a.within_df + b.within_df;
  const double of_runs = df_of_runs > 0 ? (a.within + b.within) / df_of_runs : 0;
  const double fewer_runs = std::max(0.0, of_runs * (b.per_run - a.per_run)) / m;
  effect.standard_error = std::sqrt(of_means * (1 / n + 1 / m) + fewer_runs);
  effect.df = n + m - 2;
  return effect;
}

std::vector<double> holm_levels(std::span<const double> p_values, double alpha) {
  std::vector<size_t> order(p_values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return p_values[a] < p_values[b]; });
  std::vector<double> levels(p_values.size());
  double level = 0;
  bool rejecting = true;  // once one is not rejected, the rest are not tested
  for (size_t i = 0; i < order.size(); ++i) {
    level = rejecting ? alpha / static_cast<double>(order.size() - i) : level;
    levels[order[i]] = level;
    rejecting = rejecting && p_values[order[i]] <= level;
  }
  return levels;
}

double power(double change, double limit, const Effect& effect, double tail) {
  const double error = effect.standard_error, df = effect.df;
  if (!effect.measurable()) {
    return 0;
  }
  if (error == 0) {
    return change > limit ? 1 : 0;
  }
  // Integrates over s, the ratio of the measured to the true standard error, where s² is chi-square
  // divided by its degrees of freedom: Simpson's rule.
  constexpr int kIntervals = 800;
  const double quantile = t_quantile(tail, df);
  const double last = 1 + 12 / std::sqrt(df), width = last / kIntervals;
  const double log_scale = std::log(2.0) + df / 2 * std::log(df / 2) - std::lgamma(df / 2);
  double sum = 0;
  for (int i = 0; i <= kIntervals; ++i) {
    const double s = std::max(i * width, 1e-9);
    const double density = std::exp(log_scale + (df - 1) * std::log(s) - df * s * s / 2);
    const double needed = std::max(limit, quantile * s * error);
    const double weight = i == 0 || i == kIntervals ? 1 : i % 2 == 1 ? 4 : 2;
    sum += weight * density * normal_cdf((change - needed) / error);
  }
  return std::min(1.0, sum * width / 3);
}

double detectable_change(double limit, const Effect& effect, double tail, double wanted) {
  if (!effect.measurable()) {
    return std::numeric_limits<double>::infinity();
  }
  if (effect.standard_error == 0) {
    return limit;
  }
  double high = std::max(limit, effect.standard_error);
  while (power(high, limit, effect, tail) < wanted) {
    high *= 2;
  }
  constexpr double kTolerance = 1e-6;
  double low = 0;
  while (high - low > kTolerance * high) {
    const double middle = (low + high) / 2;
    (power(middle, limit, effect, tail) < wanted ? low : high) = middle;
  }
  return high;
}

Effect Growth::with(Effect effect, double count) const {
  switch (of) {
    case Of::kRuns:
      effect.standard_error *= std::sqrt(now / count);
      effect.df = 2 * count - 2;
      break;
    case Of::kPairs:
      effect.standard_error *= std::sqrt(now / count);
      effect.df = count - 1;
      break;
    case Of::kSessions:
      effect.standard_error *= std::sqrt((1 / count + 1 / others) / (1 / now + 1 / others));
      effect.df = count + others - 2;
      break;
  }
  return effect;
}

std::optional<int64_t> count_to_decide(
    const Effect& effect, const Growth& growth, double limit, double tail, double pass_tail) {
  constexpr int64_t kMost = 1000;
  const auto decides = [&](int64_t count) {
    const Effect then = growth.with(effect, static_cast<double>(count));
    return effect.change + then.half_width(pass_tail) < limit ||
           effect.change > std::max(limit, then.half_width(tail));
  };
  auto low = static_cast<int64_t>(growth.now), high = low;
  if (!effect.measurable() || low < 1) {
    return std::nullopt;
  }
  while (!decides(high)) {
    if (high >= kMost) {
      return std::nullopt;
    }
    low = high;
    high = std::min(2 * high, kMost);
  }
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (decides(middle) ? high : low) = middle;
  }
  return high;
}

int64_t size_of(const Sample& sample) {
  int64_t size = 0;
  for (const auto& [value, count] : sample) {
    size += count;
  }
  return size;
}

double middle_of(const Sample& sample) {
  auto at = sample.begin();
  for (int64_t before = size_of(sample) / 2; before >= at->second; ++at) {
    before -= at->second;
  }
  return at->first;
}

double distribution_distance(const Sample& a, const Sample& b) {
  const auto n = static_cast<double>(size_of(a)), m = static_cast<double>(size_of(b));
  double most = 0, below_a = 0, below_b = 0;
  for (auto i = a.begin(), j = b.begin(); i != a.end() && j != b.end();) {
    const double value = std::min(i->first, j->first);
    if (i->first == value) {
      below_a += static_cast<double>(i++->second);
    }
    if (j->first == value) {
      below_b += static_cast<double>(j++->second);
    }
    most = std::max(most, std::abs(below_a / n - below_b / m));
  }
  return most;
}

double critical_distance(int64_t a, int64_t b, double alpha) {
  const auto n = static_cast<double>(a), m = static_cast<double>(b);
  return std::sqrt(-std::log(alpha / 2) / 2 * (n + m) / (n * m));
}

double alpha_of_look(int look, int looks, double alpha) {
  const auto spent = [&](int n) { return std::pow(static_cast<double>(n) / looks, 3); };
  return alpha * (spent(look) - spent(look - 1));
}

}  // namespace shardlens::check
