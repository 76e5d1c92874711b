#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "core/base/shown.h"
#include "profiler/analysis/analysis.h"
#include "profiler/report/table.h"

namespace shardlens::report {

enum class By : uint8_t { kUnit, kCollective, kStep, kRank, kStream, kSpan, kOrder, kGroup };
// The names of the tables, by By.
inline constexpr std::array<std::string_view, 8> kTables{"unit",   "collective", "step",  "rank",
                                                         "stream", "span",       "order", "group"};

// The output of `shardlens analyze --json`: schema 1 of docs/reference/metrics.md, on one line.
[[nodiscard]] std::string analysis_json(const analysis::Analysis& analysis);

// Every collective, copy and run of compute of a rank, for --by span: {"fqn", "kind", "section",
// "step", "issued_ns", "start_ns", "end_ns", "busy_ns", "needed_ns", "slack_ns", "exposed_ns",
// "cause", "issued_by", "bytes"}; times are relative to the rank's first event or step.
[[nodiscard]] nlohmann::ordered_json spans_json(const analysis::RankAnalysis& rank);
// The operations of each step on units' parameters and gradients, in order.
[[nodiscard]] nlohmann::ordered_json observed_json(const analysis::RankAnalysis& rank);
[[nodiscard]] std::string spans_csv(const analysis::Analysis& analysis);
[[nodiscard]] std::string observed_csv(const analysis::Analysis& analysis);
[[nodiscard]] Shown spans_text(const analysis::Analysis& analysis,
                               std::optional<size_t> top,
                               Style style);
[[nodiscard]] Shown observed_text(const analysis::Analysis& analysis, Style style);

// How long each two process groups of a rank, and each and compute, ran at the same time.
[[nodiscard]] Shown overlaps_text(const analysis::Analysis& analysis,
                                  std::optional<size_t> top,
                                  Style style);
[[nodiscard]] std::string overlaps_csv(const analysis::Analysis& analysis);

// The table given by `by`, with a header line, in nanoseconds and bytes. RFC 4180.
[[nodiscard]] std::string analysis_csv(const analysis::Analysis& analysis, By by);

struct TextOptions {  // of a report as text
  By by = By::kUnit;
  std::optional<size_t> top = {};  // number of rows; the rest is summed in one row
  bool each_unit = false;          // rows of single units instead of blocks alike
  // Shows how the causes of this unit were concluded; needs its spans (AnalysisOptions::explained).
  std::optional<std::string> explained = {};
  Style style;
};
// A headline for each rank whose parts sum to the span, the chosen table, the result of the order
// check, diagnostics.
[[nodiscard]] Shown analysis_text(const analysis::Analysis& analysis, const TextOptions& options);

}  // namespace shardlens::report
