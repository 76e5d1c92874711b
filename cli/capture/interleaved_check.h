#pragma once

#include <filesystem>
#include <string>

#include "profiler/check/check.h"

namespace shardlens::cli {

struct InterleavedCheck {
  std::string run, against;   // flags of capture: of the candidate, of the baseline
  int64_t runs = 5;           // a side, at most
  std::filesystem::path out;  // where the captures go; empty: a directory that is removed
};

// Captures both sides in turn, baseline and candidate, then candidate and baseline (ABBA), so that
// a machine that warms up slows both alike, and compares them in pairs. From the third pair on it
// looks after each whether it can decide: a regression at the share of `options.alpha` that belongs
// to this look (alpha_of_look), a pass when the intervals of all gates end below their limits. A
// structural difference decides after the first pair.
//
// Threads  no other thread may run, see supervise().
// Errors   UsageError for less than three runs, or flags that capture would not take or that hold
//          --out; what a capture fails with, with the end of what its ranks said.
[[nodiscard]] check::CheckResult check_interleaved(const InterleavedCheck& what,
                                                   const check::CheckOptions& options,
                                                   const check::SummaryOptions& summary_options);

}  // namespace shardlens::cli
