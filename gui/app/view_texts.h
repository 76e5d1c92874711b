#pragma once

#include <nlohmann/json_fwd.hpp>

#include "gui/view/window/main_window.h"

namespace shardlens::gui {

// What the views show, as their texts: {"headline", "panels": {"modules": {"notes": [text above the
// table], "columns": [title], "rows": [[text of each column]]}, …}}. The rows of a tree are in its
// order, each with the number of rows that it is within as its last element. Without a table there
// are only notes.
[[nodiscard]] nlohmann::ordered_json view_texts(MainWindow& window);

}  // namespace shardlens::gui
