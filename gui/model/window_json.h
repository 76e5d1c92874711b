#pragma once

#include <string>

#include "gui/model/plan_session.h"
#include "gui/model/run_data.h"

namespace shardlens::gui {

// What the window shows, as `gui --figures` prints it: {"schema": 1, "headline": the figures of the
// rank as in `analyze --json` (null without one), "versions": [{"title", "machine", "step_ns",
// "compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns", "peak_allocated_bytes",
// "peak_reserved_bytes", "baseline" as in `simulate --json`, "error"}], "note": why the run teaches
// nothing, or ""}. The run's own plan comes first.
[[nodiscard]] std::string figures_json(const RankData* rank, const PlanSession& session);

}  // namespace shardlens::gui
