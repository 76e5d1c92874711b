#pragma once

#include <optional>
#include <string>

#include <QString>

#include "gui/model/run/selection_context.h"

namespace shardlens::gui {

// The thing on which a context menu was opened. The menu's entries depend on the members that are
// set.
struct MenuTarget {
  QString text;  // text for Copy; "": nothing to copy
  std::optional<Selection::Item> item;
  std::optional<std::string> unit;
  std::optional<Nanoseconds> time;  // time of a bookmark set here, in display time
  std::optional<size_t> rank;       // the rank whose name was clicked; it can be folded
  QString lane;                     // the lane whose name was clicked; "": none
  size_t lane_rank = 0;             // its rank
  QByteArray table;                 // the whole table as CSV; empty: not a table
};

}  // namespace shardlens::gui
