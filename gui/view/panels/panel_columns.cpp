#include <algorithm>

#include <QEvent>
#include <QHeaderView>
#include <QTableView>
#include <QTreeView>

#include "gui/view/panels/panels.h"

namespace shardlens::gui {
namespace {

constexpr int kWidestColumn = 200;    // of a table; the inspector shows longer text
constexpr int kParameterWidth = 160;  // names are elided at the start
constexpr int kNarrowestName = 130, kWidestName = 210;

}  // namespace

// Columns are fitted to the width of their dock.
bool Panels::eventFilter(QObject* watched, QEvent* event) {
  if (event->type() == QEvent::Resize) {
    if (tree_view_ != nullptr && watched == tree_view_->viewport()) {
      fitTree();
    } else if (ownership_view_ != nullptr && watched == ownership_view_->viewport()) {
      fitOwnership();
    }
  }
  return QObject::eventFilter(watched, event);
}

void Panels::fit(QTableView& view) {
  view.resizeColumnsToContents();
  for (int column = 0; column < view.model()->columnCount(); ++column) {
    view.setColumnWidth(column, std::min(kWidestColumn, view.columnWidth(column)));
  }
  const QHeaderView* header = view.horizontalHeader();
  if (header->stretchLastSection()) {  // it is stretched to the width that remains
    view.setColumnWidth(header->logicalIndex(header->count() - 1), kNarrowestName);
  }
}

// Names take the width that the figures leave. If that is too little, names are narrowed (within
// limits) so that the exposed time and the plan's text are visible without scrolling.
void Panels::fitTree() {
  const int width = tree_view_->viewport()->width();
  int others = 0;
  for (int column = 1; column < UnitTree::kColumnCount; ++column) {
    others += tree_view_->columnWidth(column);
  }
  const int first =
      tree_view_->columnWidth(UnitTree::kExposed) + tree_view_->columnWidth(UnitTree::kUnits);
  tree_view_->setColumnWidth(UnitTree::kName,
                             width - others >= kNarrowestName
                                 ? width - others
                                 : std::clamp(width - first, kNarrowestName, kWidestName));
}

void Panels::measureOwnership() {
  ownership_view_->resizeColumnsToContents();
  ownership_view_->setColumnWidth(0, std::min(kParameterWidth, ownership_view_->columnWidth(0)));
  constexpr int kNow = 2;  // its text changes with the selected event
  const int widest = ownership_view_->fontMetrics().horizontalAdvance(tr("unsharded")) + 16;
  ownership_view_->setColumnWidth(kNow, std::max(widest, ownership_view_->columnWidth(kNow)));
  slice_width_ = 0;
  for (int column = OwnershipTable::kFixedColumns; column < ownership.columnCount(); ++column) {
    slice_width_ = std::max(slice_width_, ownership_view_->columnWidth(column));
  }
  QHeaderView* columns = ownership_view_->horizontalHeader();  // ranks are shown before the shape
  columns->moveSection(columns->visualIndex(1), columns->count() - 1);
  fitOwnership();
}

// The columns of ranks share the remaining width of the dock.
void Panels::fitOwnership() {
  const int ranks = ownership.columnCount() - OwnershipTable::kFixedColumns;
  if (ranks <= 0) {
    return;
  }
  int fixed = 0;
  for (int column = 0; column < OwnershipTable::kFixedColumns; ++column) {
    fixed += ownership_view_->columnWidth(column);
  }
  const int width = std::max(slice_width_, (ownership_view_->viewport()->width() - fixed) / ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    ownership_view_->setColumnWidth(OwnershipTable::kFixedColumns + rank, width);
  }
}

}  // namespace shardlens::gui
