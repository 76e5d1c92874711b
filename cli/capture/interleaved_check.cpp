#include "cli/capture/interleaved_check.h"

#include <algorithm>
#include <vector>

#include <CLI/StringTools.hpp>
#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/standard_output.h"
#include "profiler/check/baseline_file.h"
#include "profiler/check/statistics.h"

#include "cli/capture/capture_flags.h"
#include "cli/capture/logged_capture.h"
#include "cli/flags/run_options.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFirstLook = 3;  // number of pairs before the first look at the result

check::RunSummary capture_run(RunOptions flags,
                              const fs::path& out,
                              const check::SummaryOptions& summary_options) {
  flags.out = out;
  capture_logged(flags);
  check::RunSummary summary = check::read_runs(out, summary_options).front();
  summary.source = out.filename().string();
  return summary;
}

// Whether the intervals of all gates end below their limits.
bool surely_passes(const check::CheckResult& result) {
  return result.verdict != check::Verdict::kRegression && !result.metrics.empty() &&
         std::all_of(result.metrics.begin(), result.metrics.end(), [](const auto& m) {
           return !m.gates || m.effect.change + m.half_width < m.limit;
         });
}

}  // namespace

void require_enough_runs(const InterleavedCheck& what) {
  if (what.runs < kFirstLook) {
    throw UsageError(fmt::format("--runs: expected {} or more, found {}", kFirstLook, what.runs));
  }
}

check::CheckResult check_interleaved(const InterleavedCheck& what,
                                     const check::CheckOptions& options,
                                     const check::SummaryOptions& summary_options) {
  require_enough_runs(what);
  const RunOptions candidate_flags = capture_flags(CLI::detail::split_up(what.run), "--run"),
                   baseline_flags = capture_flags(CLI::detail::split_up(what.against), "--against");
  const CaptureFolder directory("--out", what.out);
  std::vector<check::RunSummary> baseline, candidate;
  check::CheckOptions paired = options;
  paired.paired = true;
  const auto looks = static_cast<int>(what.runs - kFirstLook + 1);
  for (int64_t pair = 1;; ++pair) {
    for (const bool candidate_now : {pair % 2 == 0, pair % 2 != 0}) {
      const char* side = candidate_now ? "candidate" : "baseline";
      write_stderr("pair {} of at most {}: {}\n", pair, what.runs, side);
      (candidate_now ? candidate : baseline)
          .push_back(capture_run(candidate_now ? candidate_flags : baseline_flags,
                                 directory.path() / fmt::format("{}-{}", side, pair),
                                 summary_options));
    }
    const int64_t look = pair - kFirstLook + 1;
    paired.alpha = look >= 1 ? check::alpha_of_look(static_cast<int>(look), looks, options.alpha)
                             : options.alpha;
    check::CheckResult result = check::check_runs(baseline, candidate, paired);
    const bool last = pair == what.runs, decided = look >= 1 && surely_passes(result);
    // Without metrics the runs cannot be compared at all, so more runs would not help.
    if (last || decided || result.metrics.empty() ||
        result.verdict == check::Verdict::kRegression) {
      result.alpha = options.alpha;  // for all looks together
      if (!last) {
        result.notes.push_back(
            fmt::format("decided after {} of {} pairs of runs", pair, what.runs));
      }
      return result;
    }
  }
}

}  // namespace shardlens::cli
