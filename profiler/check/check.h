#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "profiler/check/check_metrics.h"
#include "profiler/check/memory_peak.h"
#include "profiler/check/run_summary.h"
#include "profiler/check/statistics.h"
#include "profiler/check/structure.h"

namespace shardlens::check {

enum class Verdict : uint8_t { kPass, kRegression, kInconclusive };
[[nodiscard]] std::string_view name_of(Verdict verdict);  // "pass", …

// How much worse a metric may become: a share of the baseline, or a time.
struct Limit {
  std::optional<double> relative;
  std::optional<double> ns;
};

// When a peak of memory is a regression.
struct MemoryGate {
  struct Limit {  // how far above the baseline's a peak may be: a share of it, or bytes
    std::optional<double> relative;
    std::optional<Bytes> bytes;
  };
  // The candidate's peaks are compared with the baseline's, if both sides recorded them. Not by
  // default: on a CPU, Python's garbage collector may keep a buffer for some steps in one of a
  // dozen runs.
  bool gates = false;
  bool required = false;       // without peaks of both sides there is no verdict
  std::optional<Limit> limit;  // replaces the default
  std::optional<Bytes> most;   // also a regression: a peak above this, whatever the baseline's is
};

struct CheckOptions {  // which metrics decide, and by what limits
  // The metrics that gate, each with an optional limit that replaces the default.
  std::map<Metric, std::optional<Limit>> gates{{Metric::kStepTime, {}}, {Metric::kExposedComm, {}}};
  bool structure = true;  // also gate on structure
  MemoryGate memory;
  double alpha = 0.01;  // probability of a regression verdict for runs of the same program
  bool paired = false;  // the n-th runs of both sides are compared as pairs; sessions are ignored
};

struct MetricResult {  // a metric of both sides compared
  Metric metric = Metric::kStepTime;
  bool gates = false;
  Effect effect;          // ns per step
  double tail = 0;        // probability outside the confidence interval on either side
  double half_width = 0;  // half width of the confidence interval; infinite with too few runs
  double limit = 0;       // the change that a gate tolerates
  double threshold = 0;   // max(limit, half_width): a regression exceeds this
  std::optional<double> detectable;  // change that would be detected with probability 95 %
  std::optional<double> upper;       // a true change above this is excluded, with 95 % confidence
  // Runs of each side (or sessions of the baseline) with which a change of this size would be
  // decided, if it is not; nullopt: no number of them up to a thousand.
  std::optional<int64_t> enough;
  Verdict verdict = Verdict::kPass;  // only if `gates`
  // Whether the change exceeds noise and is not zero; for gating and other metrics.
  [[nodiscard]] bool moved() const;
};

struct MemoryResult {  // the peak of a device of a rank, the highest of all runs of a side
  std::optional<MemoryPeak> baseline;
  MemoryPeak candidate;
  std::optional<Bytes> allowed;  // a regression is above this; nullopt: it does not gate
  [[nodiscard]] Verdict verdict() const;
};

struct AttributionRow {               // a part of a metric's change
  Metric metric = Metric::kStepTime;  // the rows with this metric sum to its change
  std::string unit, part;             // as in Part
  double delta = 0;                   // ns per step
  double baseline = 0, candidate = 0;
};

// The verdict, and the results on which it is based.
struct CheckResult {
  Verdict verdict = Verdict::kPass;
  std::string reason;                 // one sentence
  std::vector<MetricResult> metrics;  // gates first
  bool structure = false;             // whether the structures were compared
  std::vector<StructuralDifference> structural;
  std::vector<MemoryResult> memory;         // by rank and device of the candidate
  std::vector<AttributionRow> attribution;  // only for a regression; the largest change first
  std::vector<std::string> causes;          // as sentences, structural causes first
  std::vector<std::string> notes;
  // `steps`: the smallest number of any run.
  int64_t baseline_runs = 0, candidate_runs = 0, steps = 0;
  int64_t baseline_sessions = 0, candidate_sessions = 0;
  bool by_sessions = false;  // sessions, not runs, are the observations
  double alpha = 0;
};

// Compares two sets of runs that should be of the same program. docs/use/gate-ci.md explains the
// rules.
//
// Errors  InputError if a side is empty or the runs have different ranks.
[[nodiscard]] CheckResult check_runs(const std::vector<RunSummary>& baseline,
                                     const std::vector<RunSummary>& candidate,
                                     const CheckOptions& options = {});

// The candidate's peaks of memory against `most` alone, without a baseline. Without peaks there is
// no verdict. Errors: InputError without a run, or if the runs have different ranks.
[[nodiscard]] CheckResult check_memory_limit(const std::vector<RunSummary>& candidate, Bytes most);

// The same comparison without gates, limits or a verdict; different conditions of the runs become
// notes.
[[nodiscard]] CheckResult describe_runs(const std::vector<RunSummary>& baseline,
                                        const std::vector<RunSummary>& candidate);

// The change of each part, as means over runs; `metric` is kStepTime or kExposedComm. The changes
// sum to the metric's change.
[[nodiscard]] std::vector<AttributionRow> attribute(const std::vector<RunSummary>& baseline,
                                                    const std::vector<RunSummary>& candidate,
                                                    Metric metric);

// Whether sessions are the observations: the baseline has at least two, saved in its file.
[[nodiscard]] bool compares_sessions(const std::vector<RunSummary>& baseline,
                                     const CheckOptions& options);

// Differences between runs that should have the same structure. The most frequent structure of each
// candidate run is compared; a structure of any baseline run is accepted. Sizes that vary in the
// baseline are compared as distributions.
[[nodiscard]] std::vector<StructuralDifference> structural_differences(
    const std::vector<RunSummary>& baseline, const std::vector<RunSummary>& candidate);

// The peaks of the candidate, with what `gate` allows.
[[nodiscard]] std::vector<MemoryResult> compare_memory(const std::vector<RunSummary>& baseline,
                                                       const std::vector<RunSummary>& candidate,
                                                       const MemoryGate& gate);
// In words: the peak that is highest above, or nearest below, what is allowed; "": none gates. And
// what it consists of, if it is above.
[[nodiscard]] std::string memory_reason(const std::vector<MemoryResult>& results);
[[nodiscard]] std::string memory_cause(const std::vector<MemoryResult>& results);

// Sentences about what changed: first the structure, then where the time was spent.
[[nodiscard]] std::vector<std::string> causes_of(const std::vector<RunSummary>& baseline,
                                                 const std::vector<RunSummary>& candidate,
                                                 const CheckResult& result);

// The conditions that differ and make the runs incomparable: "driver 12.4, not 12.2".
[[nodiscard]] std::vector<std::string> fingerprint_differences(const RunSummary& baseline,
                                                               const RunSummary& candidate);

// All metrics that both sides have; the gates of `options` first.
[[nodiscard]] std::vector<MetricResult> measure(const std::vector<RunSummary>& baseline,
                                                const std::vector<RunSummary>& candidate,
                                                const CheckOptions& options);

}  // namespace shardlens::check
