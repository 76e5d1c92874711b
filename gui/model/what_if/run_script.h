#pragma once

#include <string>

#include <QString>

#include "gui/model/run/capture_job.h"
#include "gui/model/what_if/plan_state.h"

namespace shardlens::gui {

// Writes the capture of a plan as a shell script, to be started on another machine.

// The name of a version as a directory's name: "v1 forward prefetch: 1" becomes
// "v1-forward-prefetch-1".
[[nodiscard]] QString directory_name(const QString& name);

// Flags of `shardlens capture` for the settings of a state's step; those with their usual value are
// left out. Batch and sequence are members of CaptureOptions.
[[nodiscard]] QStringList step_flags(const plan::StepSettings& step);

// A script that writes the plan to plan.json and runs it: on one node `shardlens capture`, on
// several torchrun on each of them. `ranks_per_node`: of the machine that the plan is for.
[[nodiscard]] QString run_script(CaptureOptions options,
                                 const QString& title,
                                 const std::string& plan_json,
                                 int64_t ranks,
                                 int64_t ranks_per_node);

}  // namespace shardlens::gui
