#pragma once

#include <QString>

#include "gui/model/run/selection_context.h"

namespace shardlens::gui {

// The details of the selection as HTML; names from the trace are escaped. Names of
// values have the class "name".
[[nodiscard]] QString inspected(const SelectionContext& context);

}  // namespace shardlens::gui
