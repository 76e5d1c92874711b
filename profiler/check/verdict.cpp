#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "profiler/check/check.h"

namespace shardlens::check {
namespace {

// docs/use/gate-ci.md explains each constant.
constexpr double kRelativeLimit = 0.02;
constexpr double kFloor = 50'000;      // ns
constexpr double kShareOfStep = 0.01;  // share of a step, for exposed communication
constexpr double kPower = 0.95;
constexpr double kPassTail = 0.05;       // of the upper bound below which a change passes
constexpr double kHalfNanosecond = 0.5;  // sums of parts are rounded
constexpr size_t kEnoughRuns = 3;
constexpr int64_t kEnoughSteps = 5;

std::optional<std::vector<double>> values_of(const std::vector<RunSummary>& runs, Metric metric) {
  std::vector<double> out;
  for (const RunSummary& run : runs) {
    const auto& value = run.metrics[metric];
    if (!value) {
      return std::nullopt;
    }
    out.push_back(*value);
  }
  return out;
}

// The values of a metric by session.
std::vector<std::vector<double>> sessions_of(const std::vector<RunSummary>& runs,
                                             const std::vector<double>& values) {
  std::map<int64_t, std::vector<double>> sessions;
  for (size_t i = 0; i < runs.size(); ++i) {
    sessions[runs[i].session].push_back(values[i]);
  }
  std::vector<std::vector<double>> out;
  for (auto& [session, list] : sessions) {
    out.push_back(std::move(list));
  }
  return out;
}

bool all_exact(const std::vector<RunSummary>& runs) {
  return std::all_of(runs.begin(), runs.end(), [](const RunSummary& r) { return r.exact; });
}

int64_t fewest_steps(const std::vector<RunSummary>& runs) {
  int64_t fewest = runs.front().used;
  for (const RunSummary& run : runs) {
    fewest = std::min(fewest, run.used);
  }
  return fewest;
}

double limit_of(Metric metric,
                const std::optional<Limit>& given,
                double baseline,
                double step_time,
                bool exact) {
  if (given) {
    return given->ns ? *given->ns : given->relative.value_or(0) * baseline;
  }
  if (exact) {
    return 0;
  }
  const double floor =
      metric == Metric::kExposedComm ? std::max(kFloor, kShareOfStep * step_time) : kFloor;
  return std::max(kRelativeLimit * baseline, floor);
}

Verdict verdict_of(const MetricResult& result, bool exact, bool enough) {
  if (!enough || !result.effect.measurable()) {
    return Verdict::kInconclusive;
  }
  if (result.effect.change > result.threshold + (exact ? kHalfNanosecond : 0)) {
    return Verdict::kRegression;
  }
  return exact || result.upper.value_or(0) < result.limit ? Verdict::kPass : Verdict::kInconclusive;
}

}  // namespace

bool MetricResult::moved() const {
  return effect.measurable() && std::abs(effect.change) > std::max(half_width, kHalfNanosecond);
}

bool compares_sessions(const std::vector<RunSummary>& baseline, const CheckOptions& options) {
  std::set<int64_t> sessions;
  for (const RunSummary& run : baseline) {
    sessions.insert(run.session);
  }
  return !options.paired && sessions.size() > 1;
}

std::vector<MetricResult> measure(const std::vector<RunSummary>& baseline,
                                  const std::vector<RunSummary>& candidate,
                                  const CheckOptions& options) {
  const bool exact = all_exact(baseline) && all_exact(candidate);
  const bool enough =
      exact || (std::min(baseline.size(), candidate.size()) >= kEnoughRuns &&
                std::min(fewest_steps(baseline), fewest_steps(candidate)) >= kEnoughSteps);
  const bool by_sessions = !exact && compares_sessions(baseline, options);
  Growth growth{options.paired ? Growth::Of::kPairs : Growth::Of::kRuns,
                static_cast<double>(std::min(baseline.size(), candidate.size())), 0};
  std::vector<MetricResult> out;
  std::vector<double> p_values;
  for (size_t i = 0; i < metric_table().size(); ++i) {
    MetricResult result;
    result.metric = static_cast<Metric>(i);
    const auto a = values_of(baseline, result.metric), b = values_of(candidate, result.metric);
    if (!a || !b) {
      continue;
    }
    result.gates = options.gates.contains(result.metric);
    if (by_sessions) {
      const auto before = sessions_of(baseline, *a), after = sessions_of(candidate, *b);
      result.effect = effect_of_sessions(before, after);
      growth = {Growth::Of::kSessions, static_cast<double>(before.size()),
                static_cast<double>(after.size())};
    } else {
      result.effect = options.paired ? effect_of_pairs(*a, *b) : effect_of_runs(*a, *b);
    }
    if (exact) {
      result.effect.df = 1;  // exact results have no uncertainty
      result.effect.standard_error = 0;
    }
    if (result.gates) {
      p_values.push_back(result.effect.p_increase());
    }
    out.push_back(result);
  }
  std::stable_partition(out.begin(), out.end(), [](const MetricResult& r) { return r.gates; });
  const std::vector<double> levels = holm_levels(p_values, options.alpha);
  const double step_time =
      values_of(baseline, Metric::kStepTime) ? midmean(*values_of(baseline, Metric::kStepTime)) : 0;
  for (size_t i = 0; i < out.size(); ++i) {
    MetricResult& result = out[i];
    result.tail = result.gates ? levels[i] : options.alpha / 2;
    result.half_width = result.effect.half_width(result.tail);
    const auto given = options.gates.find(result.metric);
    result.limit =
        limit_of(result.metric, given == options.gates.end() ? std::nullopt : given->second,
                 result.effect.baseline, step_time, exact);
    result.threshold = std::max(result.limit, result.half_width);
    if (result.gates) {
      if (enough && !exact && result.effect.measurable()) {
        result.detectable = detectable_change(result.limit, result.effect, result.tail, kPower);
        result.upper = result.effect.change + result.effect.half_width(kPassTail);
      }
      result.verdict = verdict_of(result, exact, enough);
      if (result.verdict == Verdict::kInconclusive && result.upper) {
        result.enough =
            count_to_decide(result.effect, growth, result.limit, result.tail, kPassTail);
      }
    }
  }
  return out;
}

}  // namespace shardlens::check
