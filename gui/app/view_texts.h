#pragma once

#include <nlohmann/json_fwd.hpp>

#include "gui/view/window/main_window.h"

namespace shardlens::gui {

// The texts of all views: {"headline", "panels": {"modules": {"notes": [text above the table],
// "columns": [title], "rows": [[text of each column]]}, …}}. The rows of a tree are in its order,
// with its depth as last element. Without a table there are only notes.
[[nodiscard]] nlohmann::ordered_json view_texts(MainWindow& window);

}  // namespace shardlens::gui
