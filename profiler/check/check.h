#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "profiler/check/check_metrics.h"
#include "profiler/check/run_summary.h"
#include "profiler/check/statistics.h"
#include "profiler/check/structure.h"

namespace shardlens::check {

enum class Verdict : uint8_t { kPass, kRegression, kInconclusive };
[[nodiscard]] std::string_view name_of(Verdict verdict);  // "pass", …

// How much worse a metric may get: a share of the baseline, or a time.
struct Limit {
  std::optional<double> relative;
  std::optional<double> ns;
};

struct CheckOptions {
  // What gates, with the limit to use in place of the default.
  std::map<Metric, std::optional<Limit>> gates{{Metric::kStepTime, {}}, {Metric::kExposedComm, {}}};
  bool structure = true;  // gate on structure too
  double alpha = 0.01;    // probability of failing two sets of runs of the same program
  bool paired = false;    // n-th baseline run beside the n-th candidate run
};

struct MetricResult {
  Metric metric = Metric::kStepTime;
  bool gates = false;
  Effect effect;                     // ns per step
  double tail = 0;                   // left out by the confidence interval on either side
  double half_width = 0;             // of it; infinite with too few runs
  double limit = 0;                  // what a gate tolerates
  double threshold = 0;              // max(limit, half_width): what the change has to exceed
  std::optional<double> detectable;  // change that would have been found 95 times of 100
  Verdict verdict = Verdict::kPass;  // of a gate
  // Of the others, as of gates: whether it moved by more than noise and by more than nothing.
  [[nodiscard]] bool moved() const;
};

struct AttributionRow {
  Metric metric = Metric::kStepTime;  // whose change the rows of it sum to
  std::string unit, part;             // as Part
  double delta = 0;                   // ns per step
};

// What was found, and what it rests on.
struct CheckResult {
  Verdict verdict = Verdict::kPass;
  std::string reason;                 // one sentence
  std::vector<MetricResult> metrics;  // gates first
  std::vector<StructuralDifference> structural;
  std::vector<AttributionRow> attribution;  // of a regression; the largest change first
  std::vector<std::string> causes;          // in words, the first structural one first
  std::vector<std::string> notes;
  int64_t baseline_runs = 0, candidate_runs = 0, steps = 0;  // steps: the fewest of a run
  double alpha = 0;
};

// Compares two sets of runs of what should be the same program. docs/ci.md has the rules.
//
// Errors  InputError when a side is empty or the runs are not of the same ranks.
[[nodiscard]] CheckResult check_runs(const std::vector<RunSummary>& baseline,
                                     const std::vector<RunSummary>& candidate,
                                     const CheckOptions& options = {});

// What check_runs() would look at, without gates, limits or a verdict; conditions that differ are
// notes.
[[nodiscard]] CheckResult describe_runs(const std::vector<RunSummary>& baseline,
                                        const std::vector<RunSummary>& candidate);

// The change of each part, means over runs; `metric` is kStepTime or kExposedComm. Sums to the
// metric's change.
[[nodiscard]] std::vector<AttributionRow> attribute(const std::vector<RunSummary>& baseline,
                                                    const std::vector<RunSummary>& candidate,
                                                    Metric metric);

// Differences between runs that should have the same structure; what a run did in most steps
// counts, and anything that some baseline run did is known.
[[nodiscard]] std::vector<StructuralDifference> structural_differences(
    const std::vector<RunSummary>& baseline, const std::vector<RunSummary>& candidate);

// What changed, for people: what the structure says first, then where the time went.
[[nodiscard]] std::vector<std::string> causes_of(const std::vector<RunSummary>& baseline,
                                                 const std::vector<RunSummary>& candidate,
                                                 const CheckResult& result);

// "driver: 12.4, was 12.2": what makes the runs incomparable.
[[nodiscard]] std::vector<std::string> fingerprint_differences(const RunSummary& baseline,
                                                               const RunSummary& candidate);

// Every metric that both sides know, gates of `options` first.
[[nodiscard]] std::vector<MetricResult> measure(const std::vector<RunSummary>& baseline,
                                                const std::vector<RunSummary>& candidate,
                                                const CheckOptions& options);

}  // namespace shardlens::check
