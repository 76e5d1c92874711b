#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/shown.h"
#include "core/schedule/planned/plan_lints.h"
#include "profiler/report/table.h"

namespace shardlens::cli {

// `lints` of plan and simulate.
[[nodiscard]] nlohmann::ordered_json lints_json(const std::vector<schedule::PlanLint>& lints);
// One for each line, with what helps; "": there are none.
[[nodiscard]] Shown lints_text(const std::vector<schedule::PlanLint>& lints, report::Style style);

}  // namespace shardlens::cli
