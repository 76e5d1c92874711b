#pragma once

#include <cstdint>
#include <vector>

#include "core/edits/plan_edit.h"

namespace shardlens::plan {

// The values from which a user chooses for keys whose edits need no model: sizes of the mesh over
// `ranks`, and the plan's settings that are the same for all units. None of other keys.
[[nodiscard]] std::vector<PlanEdit> setting_values(PlanKey key, int64_t ranks);

}  // namespace shardlens::plan
