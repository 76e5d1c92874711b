#pragma once

#include <string>

#include "core/base/shown.h"
#include "profiler/check/compare.h"
#include "profiler/report/table.h"

namespace shardlens::report {

// The output of `shardlens compare`: as check_json(), without verdicts, and with "items", one per
// item of a step; docs/reference/metrics.md.
[[nodiscard]] std::string compare_json(const check::Comparison& comparison);
// Items that changed by more than noise, items on only one side, and one line for all others.
[[nodiscard]] Shown compare_text(const check::Comparison& comparison, Style style);

}  // namespace shardlens::report
