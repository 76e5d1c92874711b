#pragma once

#include <vector>

#include "gui/model/tables/column_table.h"
#include "gui/model/what_if/edit_history.h"

namespace shardlens::gui {

// The columns of the table of a session's versions, the most important ones first. `session` must
// outlive the table.
[[nodiscard]] std::vector<ColumnTable::Column> version_columns(const PlanSession& session);

}  // namespace shardlens::gui
