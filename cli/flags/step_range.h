#pragma once

#include <string>

#include "profiler/analysis/analysis.h"

namespace shardlens::cli {

// "A:B": steps A ≤ k < B; A or B may be left out. Errors: UsageError.
[[nodiscard]] analysis::StepRange parse_step_range(const std::string& text);

}  // namespace shardlens::cli
