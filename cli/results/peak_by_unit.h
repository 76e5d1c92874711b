#pragma once

#include <nlohmann/json.hpp>

#include "core/base/shown.h"
#include "profiler/report/table.h"
#include "sim/scenario/scenario.h"

namespace shardlens::cli {

// Bytes at the peak, by unit and by what they are; of a prediction with StepMemory::alive.
// `memory_by_unit` of simulate --json: the units in the order of the plan, then what is of no unit.
[[nodiscard]] nlohmann::ordered_json peak_by_unit_json(const sim::Prediction& prediction);
// A table of the same. Units whose names differ only in numbers are one row.
[[nodiscard]] Shown peak_by_unit_text(const sim::Prediction& prediction, report::Style style);

}  // namespace shardlens::cli
