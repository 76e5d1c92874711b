#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "profiler/analysis/analysis.h"
#include "profiler/report/table.h"

namespace shardlens::report {

enum class By : uint8_t { kUnit, kCollective, kStep, kRank, kStream };

// `shardlens analyze --json`: schema 1 of docs/metrics.md, one line.
[[nodiscard]] std::string analysis_json(const analysis::Analysis& analysis);

// One table with a header line, in nanoseconds and bytes; which one, `by` says. RFC 4180.
[[nodiscard]] std::string analysis_csv(const analysis::Analysis& analysis, By by);

struct TextOptions {
  By by = By::kUnit;
  std::optional<size_t> top;  // rows of the table; the rest is summed up in one
  Style style = Style::kPlain;
};
// Headline per rank whose parts sum to the span, the table asked for, the order check in words,
// diagnostics.
[[nodiscard]] std::string analysis_text(const analysis::Analysis& analysis,
                                        const TextOptions& options);

}  // namespace shardlens::report
