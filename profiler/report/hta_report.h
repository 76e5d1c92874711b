#pragma once

#include <string>
#include <vector>

#include "core/base/shown.h"
#include "profiler/analysis/compat/hta.h"
#include "profiler/report/table.h"

// The output of `analyze --compat hta` as text, JSON and CSV, with HTA's column names.
namespace shardlens::report {

[[nodiscard]] Shown hta_text(const std::vector<analysis::HtaFigures>& ranks, Style style);
[[nodiscard]] std::string hta_json(const std::vector<analysis::HtaFigures>& ranks);
[[nodiscard]] std::string hta_csv(const std::vector<analysis::HtaFigures>& ranks);

}  // namespace shardlens::report
