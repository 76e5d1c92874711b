#pragma once

#include <string>

#include "profiler/check/compare.h"
#include "profiler/report/table.h"

namespace shardlens::report {

// `shardlens compare`: what check_json() says, without verdicts, and "items", one per thing that a
// step does; docs/metrics.md.
[[nodiscard]] std::string compare_json(const check::Comparison& comparison);
// What changed by more than noise, what only one side has, and one line for all else.
[[nodiscard]] std::string compare_text(const check::Comparison& comparison, Style style);

}  // namespace shardlens::report
