#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/edits/framework_settings.h"
#include "profiler/analysis/analysis.h"
#include "sim/scenario/recorded_run.h"
#include "sim/scenario/scenario.h"

namespace shardlens::sim {

// Communication of a unit that a change hides under compute or makes unnecessary, per step.
struct HiddenTime {
  std::string unit;        // FQN; "": the root
  std::string collective;  // name_of(UnitPart)
  Nanoseconds time = 0;
};

// The expected effect of a change. It is certain if its sign has a probability of 99 % or more.
enum class Verdict : uint8_t {
  kTooLarge,      // it does not fit
  kPays,          // the step becomes shorter, certainly
  kProbablyPays,  // or probably
  kNoDifference,  // less than kLeastDifference is expected, of either sign
  kProbablyLoses,
  kLoses,
};
// "does not fit", "pays", "probably pays", "no difference", "probably loses", "loses".
[[nodiscard]] std::string_view name_of(Verdict verdict);

// A smaller expected change, in parts of the step, has no sign: bench/RESULTS.md has measured none
// of these beyond noise.
inline constexpr double kLeastDifference = 0.005;

// The evidence for the sign of a change.
struct Odds {
  Verdict verdict = Verdict::kNoDifference;
  double probability = 0.5;  // that the step becomes shorter

  // The odds of a probable verdict in 100, rounded down: 93 for 93.8 %. nullopt: the verdict is
  // certain, or no difference is expected.
  [[nodiscard]] std::optional<int> in_100() const;
  // "probably pays, odds 93 in 100"; "pays". Everything that people read has these words.
  [[nodiscard]] std::string text() const;
};

// The odds of a change of a step by `change`, with a normal error of this standard error. `step`:
// the step that changes.
[[nodiscard]] Odds odds_of(Nanoseconds change, double error, Nanoseconds step, bool fits);

struct AdvisedChange {  // a change of the plan, and what it brings
  std::string id;       // plan::PlanEdit::id; several changes: joined by "+"
  std::string title;    // "keep parameters after forward"; several changes: joined by "; "
  plan::Plan plan;
  plan::StepSettings step;
  std::vector<std::string> pytorch;         // lines of a PyTorch program that make the change
  std::vector<std::string> lines;           // the same for Advice::framework
  Nanoseconds duration = 0;                 // of a step
  Nanoseconds change = 0;                   // against the simulated step of the run's own plan
  PredictedInterval interval;               // of `change`, 90 %
  std::vector<Extrapolation> extrapolated;  // what its price rests on besides measured sizes
  Bytes peak_allocated = 0, peak_reserved = 0;
  bool fits = true;
  Nanoseconds bound = 0;  // of `change`, one-sided 99 %, on the side of zero
  Odds odds;
  std::vector<HiddenTime> hides;  // the longest first; only of Advice::changes

  // Certainly or probably.
  [[nodiscard]] bool pays() const {
    return odds.verdict == Verdict::kPays || odds.verdict == Verdict::kProbablyPays;
  }
  // Only if it was captured: the mean of its differences from the run's own plan, each of captures
  // that follow each other, and the standard error of this mean.
  std::optional<Nanoseconds> measured_change, measured_error;
};

// A change that could not be predicted from the run.
struct UnknownChange {
  std::string id, title, reason;
};

// What is wasteful in the run as it is.
struct FoundWaste {
  analysis::WasteKind kind = analysis::WasteKind::kGatheredAgain;
  std::string unit;      // a unit, a bucket, or an operator
  Nanoseconds lost = 0;  // per step, on the rank that lost most
  std::string evidence;  // a sentence
};

struct Advice {  // what to change about a run
  Baseline baseline;
  Bytes peak_allocated = 0;  // simulated, of the run's own plan
  bool fits = true;          // the run's own plan
  Bytes available = 0;       // that the allocator can reserve; 0: unknown
  plan::Framework framework = plan::Framework::kPytorch;  // that the program ran under
  size_t steps = 0;  // recorded steps that the intervals have their noise from
  // The host waits for each all-gather where it is issued, so that prefetch hides nothing.
  bool all_gathers_block = false;
  // Changes that pay, certainly or probably, from the largest expected gain on. If the own plan
  // does not fit, every change that fits.
  std::vector<AdvisedChange> changes;
  std::vector<AdvisedChange> others;  // predicted, but not to pay, or too large
  std::vector<UnknownChange> unknown;
  std::vector<FoundWaste> waste;  // the most expensive first

  // Whether the simulator's error for the run as it is exceeds the largest gain.
  [[nodiscard]] bool is_uncertain() const;
};

struct AdviseOptions {     // limits of what is advised
  Bytes memory_limit = 0;  // of a rank, in addition to the machine's own; 0: none
  size_t top = 5;          // maximum number of changes
  std::function<void(size_t done, size_t all)> on_progress;  // after each single change
  const std::atomic<bool>* cancelled = nullptr;              // checked between changes
};

// Predicts the changes of a recorded run's plan (single_changes()), and the best one together with
// others that add to its gain.
//
// `analysis` is that of the run; its waste is listed.
// Errors  those of evaluate() for the run's own plan; RuntimeFault if it was cancelled.
[[nodiscard]] Advice advise(const std::shared_ptr<const RecordedRun>& run,
                            const analysis::Analysis& analysis,
                            const AdviseOptions& options = {});

}  // namespace shardlens::sim
