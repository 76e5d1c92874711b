#pragma once

#include <optional>
#include <vector>

#include <QString>
#include <QStringList>

#include "gui/model/run/selection_context.h"

namespace shardlens::gui {

// For each process group of the chosen rank and window, the shares of its time in which compute and
// the other groups ran too.
struct GroupOverlaps {
  QStringList columns;  // "compute", then the groups
  struct Row {
    QString group;
    std::vector<std::optional<double>> shares;  // by column; nullopt: the group itself
  };
  std::vector<Row> rows;  // the busiest group first
};

// No rows if fewer than two groups communicate.
[[nodiscard]] GroupOverlaps group_overlaps(const SelectionContext& selection);

}  // namespace shardlens::gui
