#pragma once

#include <cstddef>
#include <string>

#include <nlohmann/json.hpp>

#include "profiler/analysis/analysis.h"
#include "profiler/trace/run.h"

namespace shardlens::report {

struct HtmlOptions {  // of a report as a page
  // Size limit of the timelines in the file; beyond it, steps in the middle are shown without a
  // timeline.
  size_t timeline_bytes = 3'500'000;
  // Plans simulated on the run's machine, starting with the run's own plan: a list of objects with
  // "title" and the keys of `simulate --json`. null: the page has no section on them.
  nlohmann::ordered_json simulated = nullptr;
  // What to change about the run, as in `advise --json`. null: the page has no section on it.
  nlohmann::ordered_json advice = nullptr;
};

// One self-contained page: headline, simulated plans, advice, timeline of a chosen step and rank,
// units, order, memory, steps, diagnostics. The data of `shardlens analyze --json` is in the
// element with id "data" under "analysis", so that the numbers are the same. The page loads nothing
// else, and names from the trace are inserted as data, never as markup.
//
// `analysis` must have been made with AnalysisOptions::detail.
[[nodiscard]] std::string html_report(const trace::Run& run,
                                      const analysis::Analysis& analysis,
                                      const HtmlOptions& options = {});

}  // namespace shardlens::report
