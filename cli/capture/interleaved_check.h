#pragma once

#include <filesystem>
#include <string>

#include "profiler/check/check.h"

namespace shardlens::cli {

struct InterleavedCheck {
  std::string run, against;   // flags of capture for the candidate and for the baseline
  int64_t runs = 5;           // maximum number of captures of each side
  std::filesystem::path out;  // directory for the captures; empty: a temporary one
};

// Errors: UsageError for fewer than three runs.
void require_enough_runs(const InterleavedCheck& what);

// Captures both sides alternately, baseline and candidate, then candidate and baseline (ABBA), so
// that a machine that warms up slows both sides equally, and compares them in pairs. From the third
// pair on, it stops as soon as there is a verdict: a regression at the share of `options.alpha` for
// this look (alpha_of_look), or a pass if the intervals of all gates end below their limits. A
// structural difference gives a verdict after the first pair.
//
// Threads  no other thread may run, see supervise().
// Errors   UsageError for fewer than three runs, for flags that capture does not accept, or for
//          --out among them; the error of a failed capture, with the last lines of its ranks.
[[nodiscard]] check::CheckResult check_interleaved(const InterleavedCheck& what,
                                                   const check::CheckOptions& options,
                                                   const check::SummaryOptions& summary_options);

}  // namespace shardlens::cli
