#pragma once

#include <cstddef>
#include <string>

#include <nlohmann/json.hpp>

#include "profiler/analysis/analysis.h"
#include "profiler/trace/run.h"

namespace shardlens::report {

struct HtmlOptions {
  // What the timelines may take in the file; beyond it, steps in the middle have figures only.
  size_t timeline_bytes = 3'500'000;
  // Plans that were simulated on the run's machine, its own one first: a list of objects with
  // "title" and the keys of `simulate --json`. null: the page says nothing of them.
  nlohmann::ordered_json simulated = nullptr;
};

// One self-contained page: headline, simulated plans, timeline of a chosen step and rank, units,
// order, memory, steps, diagnostics. Its data are `shardlens analyze --json`'s, in the element with id "data"
// under "analysis", so that numbers are the same. Nothing is loaded from elsewhere, and names from
// the trace are data, never markup.
//
// `analysis` must have been made with AnalysisOptions::detail.
[[nodiscard]] std::string html_report(const trace::Run& run,
                                      const analysis::Analysis& analysis,
                                      const HtmlOptions& options = {});

}  // namespace shardlens::report
