#include "gui/view/panels/panel_views.h"

#include <algorithm>
#include <vector>

#include <QHeaderView>
#include <QLabel>
#include <QTableView>

#include "gui/view/widgets/delegates.h"
#include "gui/view/widgets/elided_header.h"

namespace shardlens::gui {
namespace {

constexpr int kMeasuredRows = 100;  // rows that are measured for the widths of columns
constexpr int kWidestColumn = 160;  // of a table; the inspector shows longer text
constexpr int kNarrowestStretch = 80, kNarrowestElided = 90;

}  // namespace

QTableView* make_table(ColumnTable& model, const QString& name) {
  auto* view = new QTableView;
  elide_header(*view);
  view->setModel(&model);
  view->setAccessibleName(name);
  view->setAlternatingRowColors(true);
  view->setSelectionBehavior(QAbstractItemView::SelectRows);
  view->setSelectionMode(QAbstractItemView::ExtendedSelection);  // several rows: to copy them
  view->setShowGrid(false);
  view->setWordWrap(false);
  view->setSortingEnabled(true);
  view->horizontalHeader()->setSortIndicatorShown(true);
  view->horizontalHeader()->setSortIndicator(-1, Qt::AscendingOrder);
  // Text takes the room that is left; a number stays below its title.
  const QVariant last =
      model.headerData(model.columnCount() - 1, Qt::Horizontal, Qt::TextAlignmentRole);
  view->horizontalHeader()->setStretchLastSection(!(last.toInt() & Qt::AlignRight));
  view->horizontalHeader()->setResizeContentsPrecision(kMeasuredRows);
  view->verticalHeader()->hide();
  view->verticalHeader()->setDefaultSectionSize(view->fontMetrics().height() + 7);
  view->setItemDelegate(new EmphasisDelegate(view));
  view->setTabKeyNavigation(false);
  return view;
}

QLabel* make_note() {
  auto* label = new QLabel;
  label->setWordWrap(true);
  label->setContentsMargins(8, 4, 8, 4);
  label->setTextInteractionFlags(Qt::TextSelectableByMouse);
  return label;
}

std::vector<int> fit_columns(QTableView& view) {
  view.resizeColumnsToContents();
  std::vector<int> elided;
  for (int column = 0; column < view.model()->columnCount(); ++column) {
    if (view.columnWidth(column) > kWidestColumn) {
      view.setColumnWidth(column, kWidestColumn);
      elided.push_back(column);
    }
  }
  const QHeaderView* header = view.horizontalHeader();
  if (header->stretchLastSection()) {  // it is stretched to the width that remains
    const int last = header->logicalIndex(header->count() - 1);
    view.setColumnWidth(last, kNarrowestStretch);
    std::erase(elided, last);
  }
  share_width(view, elided);
  return elided;
}

void share_width(QTableView& view, const std::vector<int>& elided) {
  const QHeaderView* header = view.horizontalHeader();
  int needed = 0;
  for (int column = 0; column < header->count(); ++column) {
    const bool last =
        header->stretchLastSection() && column == header->logicalIndex(header->count() - 1);
    needed += last ? kNarrowestStretch
              : std::find(elided.begin(), elided.end(), column) != elided.end()
                  ? kWidestColumn
                  : view.columnWidth(column);
  }
  int missing = std::max(0, needed - view.viewport()->width());
  for (size_t i = 0; i < elided.size(); ++i) {
    const int left = static_cast<int>(elided.size() - i);
    const int width = std::max(kNarrowestElided, kWidestColumn - (missing + left - 1) / left);
    missing -= std::min(missing, kWidestColumn - width);
    view.setColumnWidth(elided[i], width);
  }
}

std::vector<int> shown_columns(const QHeaderView& header) {
  std::vector<int> out;
  for (int at = 0; at < header.count(); ++at) {
    const int column = header.logicalIndex(at);
    if (!header.isSectionHidden(column)) {
      out.push_back(column);
    }
  }
  return out;
}

void show_row(QTableView& view, const QModelIndex& row) {
  if (!row.isValid()) {
    view.selectionModel()->clearSelection();
  } else if (!view.selectionModel()->isRowSelected(row.row())) {
    // Not QTableView::setCurrentIndex(): with a key such as Shift it would extend the selection.
    view.selectionModel()->setCurrentIndex(
        row, QItemSelectionModel::ClearAndSelect | QItemSelectionModel::Rows);
    view.scrollTo(row);
  }
}

}  // namespace shardlens::gui
