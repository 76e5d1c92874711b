#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "gui/model/run/run_data.h"
#include "gui/model/what_if/edit_history.h"

namespace shardlens::gui {

// The figures that the window shows, as `gui --figures` prints them: {"schema": 1, "headline": the
// figures of the rank as in `analyze --json` (null without a rank), "versions": [{"title",
// "machine", "step_ns", "compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns",
// "peak_allocated_bytes", "peak_reserved_bytes", "baseline" as in `simulate --json`, "error"}],
// "note": why no machine could be calibrated from the run, or "", "views": `views`}. The run's own
// plan is the first version.
[[nodiscard]] std::string figures_json(const RankData* rank,
                                       const PlanSession& session,
                                       const nlohmann::ordered_json& views);

}  // namespace shardlens::gui
