#pragma once

#include <string_view>

#include "core/plan/resolved_plan.h"

namespace shardlens::cli {

// `plan --parameters`: who holds which elements of each parameter, and where in its shard of the
// unit, as a table on stdout. Ranks that hold equal parts, one after the other, share a line.
void print_parameters(const plan::ResolvedPlan& plan);

// `object`, a JSON object over several lines, with the members "parameters" and "padding"
// (docs/cli.md), on stdout. Large worlds have many ranges: they are written one by one.
void write_json_with_parameters(std::string_view object, const plan::ResolvedPlan& plan);

}  // namespace shardlens::cli
