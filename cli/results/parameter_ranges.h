#pragma once

#include <string_view>

#include "core/plan/resolved_plan.h"

namespace shardlens::cli {

// `plan --parameters`: prints a table of the elements of each parameter on each rank, and their
// place in the rank's shard of the unit. Consecutive ranks with equal parts share a line.
void print_parameters(const plan::ResolvedPlan& plan);

// Writes `object`, a JSON object in several lines, to stdout with additional members "parameters"
// and "padding" (docs/reference/cli.md). The ranges are written one by one, since large worlds have
// many.
void write_json_with_parameters(std::string_view object, const plan::ResolvedPlan& plan);

}  // namespace shardlens::cli
