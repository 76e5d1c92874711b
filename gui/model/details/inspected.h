#pragma once

#include <QString>

#include "gui/model/run/selection_context.h"

namespace shardlens::gui {

// The details of the selection as HTML; names from the trace are escaped. Names of
// values have the class "name". `recovered`: for a run without a plan of its own, the plan
// recovered from its traces, or nullptr.
[[nodiscard]] QString inspected(const SelectionContext& context,
                                const PlanPointer& recovered = nullptr);

}  // namespace shardlens::gui
