#include "gui/view/panels/panel_views.h"

#include <algorithm>

#include <QHeaderView>
#include <QLabel>
#include <QTableView>

#include "gui/view/widgets/delegates.h"

namespace shardlens::gui {
namespace {

constexpr int kMeasuredRows = 100;  // rows that are measured for the widths of columns
constexpr int kWidestColumn = 160;  // of a table; the inspector shows longer text
constexpr int kNarrowestStretch = 80;

}  // namespace

QTableView* make_table(ColumnTable& model, const QString& name) {
  auto* view = new QTableView;
  view->setModel(&model);
  view->setAccessibleName(name);
  view->setAlternatingRowColors(true);
  view->setSelectionBehavior(QAbstractItemView::SelectRows);
  view->setSelectionMode(QAbstractItemView::SingleSelection);
  view->setShowGrid(false);
  view->setWordWrap(false);
  view->setSortingEnabled(true);
  view->horizontalHeader()->setSortIndicatorShown(true);
  view->horizontalHeader()->setSortIndicator(-1, Qt::AscendingOrder);
  view->horizontalHeader()->setStretchLastSection(true);
  view->horizontalHeader()->setHighlightSections(false);
  view->horizontalHeader()->setTextElideMode(Qt::ElideRight);
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

void fit_columns(QTableView& view) {
  view.resizeColumnsToContents();
  for (int column = 0; column < view.model()->columnCount(); ++column) {
    view.setColumnWidth(column, std::min(kWidestColumn, view.columnWidth(column)));
  }
  const QHeaderView* header = view.horizontalHeader();
  if (header->stretchLastSection()) {  // it is stretched to the width that remains
    view.setColumnWidth(header->logicalIndex(header->count() - 1), kNarrowestStretch);
  }
}

void show_row(QTableView& view, const QModelIndex& row) {
  if (!row.isValid()) {
    view.selectionModel()->clearSelection();
  } else if (!view.selectionModel()->isRowSelected(row.row())) {
    view.setCurrentIndex(row);
    view.scrollTo(row);
  }
}

}  // namespace shardlens::gui
