#pragma once

#include <optional>
#include <string>

#include <QString>

#include "gui/model/selection_context.h"

namespace shardlens::gui {

// What a context menu was asked for on; its entries follow from what is known of it.
struct MenuTarget {
  QString text;  // that Copy takes; "": nothing to copy
  std::optional<Selection::Item> item;
  std::optional<std::string> unit;
  std::optional<Nanoseconds> time;  // where a bookmark would be set, in display time
  std::optional<size_t> rank;       // whose name it is: it can be folded
  QByteArray table;                 // all of it as CSV; empty: it is no table
};

}  // namespace shardlens::gui
