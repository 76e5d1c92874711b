#include "gui/model/tables/column_header.h"

#include <Qt>

namespace shardlens::gui {

QVariant cell_alignment(bool right) {
  return static_cast<int>((right ? Qt::AlignRight : Qt::AlignLeft) | Qt::AlignVCenter);
}

QVariant header_of(const QString& title, const QString& help, bool right, int role) {
  switch (role) {
    case Qt::DisplayRole:
      return title;
    case Qt::ToolTipRole:
      return help.isEmpty() ? QVariant() : QVariant(help);
    case Qt::TextAlignmentRole:
      return cell_alignment(right);
    default:
      return {};
  }
}

}  // namespace shardlens::gui
