#include "gui/view/panels/panel.h"

#include <algorithm>
#include <utility>

#include <QApplication>
#include <QClipboard>
#include <QEvent>
#include <QHeaderView>
#include <QKeyEvent>
#include <QScopedValueRollback>
#include <QTableView>
#include <QToolButton>
#include <QTreeView>
#include <QVBoxLayout>

#include "gui/model/tables/column_table.h"
#include "gui/view/panels/panel_views.h"

namespace shardlens::gui {
namespace {

constexpr int kCopiedRows = 20'000;  // larger tables cannot be copied as a whole

// The row as the view shows it: visible columns in their order on the screen, separated by tabs.
QString row_text(const QHeaderView& header, const QModelIndex& index) {
  QStringList cells;
  for (const int column : shown_columns(header)) {
    cells.append(index.siblingAtColumn(column).data().toString());
  }
  return cells.join(u'\t');
}

// A line for each row, from top to bottom, without titles of sections.
QString rows_text(const QHeaderView& header, QModelIndexList rows) {
  rows.removeIf([](const QModelIndex& row) { return !(row.flags() & Qt::ItemIsSelectable); });
  std::ranges::sort(rows, {}, &QModelIndex::row);
  QStringList lines;
  for (const QModelIndex& row : rows) {
    lines.append(row_text(header, row));
  }
  return lines.join(u'\n');
}

// In views of panels Left and Right fold trees and move along rows, although they are shortcuts
// elsewhere. Home and End choose the first and the last row, as in trees; Qt's own move along a
// table's row, which is selected as a whole. Copy takes all columns of the selected rows; Qt's own
// takes one cell.
class ViewKeys : public QObject {
 public:
  using QObject::QObject;

 protected:
  bool eventFilter(QObject* watched, QEvent* event) override {
    if (event->type() == QEvent::KeyPress &&
        static_cast<QKeyEvent*>(event)->matches(QKeySequence::Copy)) {
      const auto* view = qobject_cast<const QAbstractItemView*>(watched);
      const auto* tree = qobject_cast<const QTreeView*>(view);
      const auto* table = qobject_cast<const QTableView*>(view);
      const QModelIndexList rows =
          view == nullptr ? QModelIndexList() : view->selectionModel()->selectedRows();
      if (!rows.isEmpty()) {
        QApplication::clipboard()->setText(
            rows_text(tree != nullptr ? *tree->header() : *table->horizontalHeader(), rows));
        return true;
      }
    }
    if (event->type() == QEvent::KeyPress && chooseEnd(watched, *static_cast<QKeyEvent*>(event))) {
      return true;
    }
    if (event->type() == QEvent::ShortcutOverride) {
      const auto* key = static_cast<QKeyEvent*>(event);
      const bool plain = (key->modifiers() & ~Qt::KeypadModifier) == Qt::NoModifier;
      if (plain && (key->key() == Qt::Key_Left || key->key() == Qt::Key_Right)) {
        event->accept();
        return true;
      }
    }
    return false;
  }

 private:
  static bool chooseEnd(QObject* watched, const QKeyEvent& key) {
    auto* table = qobject_cast<QTableView*>(watched);
    const bool end = key.key() == Qt::Key_End;
    if (table == nullptr || (key.modifiers() & ~Qt::KeypadModifier) != Qt::NoModifier ||
        (!end && key.key() != Qt::Key_Home) || table->model()->rowCount() == 0 ||
        table->selectionBehavior() != QAbstractItemView::SelectRows) {
      return false;
    }
    const int column = std::max(0, table->currentIndex().column());
    QModelIndex row = table->model()->index(end ? table->model()->rowCount() - 1 : 0, column);
    while (row.isValid() && !(row.flags() & Qt::ItemIsSelectable)) {  // a section's title
      row = row.siblingAtRow(row.row() + (end ? -1 : 1));
    }
    show_row(*table, row);
    return true;
  }
};

}  // namespace

Panel::Panel(const PanelContext& context) : context_(context) {}

void Panel::stack(std::initializer_list<QWidget*> widgets) {
  auto* column = new QVBoxLayout(this);
  column->setContentsMargins(0, 0, 0, 0);
  column->setSpacing(0);
  for (QWidget* widget : widgets) {
    column->addWidget(widget);
  }
}

void Panel::showRun() {
  const QScopedValueRollback guard(updating_, true);
  runChanged();
  selectionChanged();
  fitColumns();
}

void Panel::showSelection() {
  const QScopedValueRollback guard(updating_, true);
  selectionChanged();
}

void Panel::setView(QAbstractItemView& view) {
  view_ = &view;
  view.installEventFilter(new ViewKeys(this));
  view.setContextMenuPolicy(Qt::CustomContextMenu);
  connect(&view, &QWidget::customContextMenuRequested, this, &Panel::requestMenu);
}

QToolButton* Panel::commandButton(const QString& text, const char* command) {
  auto* out = new QToolButton;
  const QString id = QLatin1String(command);
  out->setText(text);
  out->setEnabled(false);
  connect(out, &QToolButton::clicked, this, [this, id] { actions().trigger(id); });
  connect(&actions(), &ActionRegistry::changed, out, [this, out, id] {
    const Command* of = actions().find(id);
    out->setEnabled(of != nullptr && of->enabled());
    out->setToolTip(of == nullptr ? QString() : of->enabled() ? of->title : of->needs);
  });
  return out;
}

void Panel::watchWidth() {
  view_->viewport()->installEventFilter(this);
}

bool Panel::eventFilter(QObject* watched, QEvent* event) {
  if (event->type() == QEvent::Resize && view_ != nullptr && watched == view_->viewport()) {
    widthChanged();
  }
  return QWidget::eventFilter(watched, event);
}

// The current row is not used: a view that gets the keyboard focus makes its first row current
// without selecting it, and a mouse press makes a row current before it is selected.
void Panel::onChosen(std::function<void(const QModelIndex&)> choose) {
  // Several rows are only selected to be copied.
  const auto chosen = [this, view = view_, choose = std::move(choose)](const QModelIndex& index) {
    const bool is_row = (index.flags() & Qt::ItemIsSelectable) != 0;  // not a section's title
    if (!updating_ && is_row && view->selectionModel()->selectedRows().size() <= 1) {
      choose(index);
    }
  };
  connect(view_->selectionModel(), &QItemSelectionModel::selectionChanged, this,
          [this, view = view_, chosen] {
            // Also the one row that is left of several.
            const QModelIndexList rows = view->selectionModel()->selectedRows();
            if (rows.size() == 1) {
              chosen(rows.front());
            } else if (!updating_ && !view->selectionModel()->hasSelection()) {
              selection().selectUnit(std::nullopt);  // the user clicked outside of all rows
            }
          });
  connect(view_, &QAbstractItemView::clicked, this, chosen);
  connect(view_, &QAbstractItemView::activated, this, [this, chosen](const QModelIndex& index) {
    chosen(index);
    const Selection& held = selection().current();
    if (held.item || held.unit) {  // rows that only group others have no place to go to
      emit goRequested();
    }
  });
}

void Panel::requestMenu(const QPoint& where) {
  QModelIndex index = view_->indexAt(where);
  if (QWidget* keyboard = QApplication::focusWidget();
      !index.isValid() && keyboard == view_ && view_->currentIndex().isValid()) {
    index = view_->currentIndex();
  }
  emit menuRequested(targetAt(index), view_->viewport()->mapToGlobal(where));
}

MenuTarget Panel::targetAt(const QModelIndex& index) const {
  MenuTarget out;
  if (const int rows = view_->model()->rowCount(); rows > 0 && rows <= kCopiedRows) {
    out.table = to_csv(*view_->model());
  }
  if (!(index.flags() & Qt::ItemIsSelectable)) {
    return out;  // also of an invalid index
  }
  const auto* as_tree = qobject_cast<const QTreeView*>(view_);
  const auto* table = qobject_cast<const QTableView*>(view_);
  const QHeaderView& header = as_tree != nullptr ? *as_tree->header() : *table->horizontalHeader();
  const QModelIndexList rows = view_->selectionModel()->selectedRows();
  out.text = rows.size() > 1 && view_->selectionModel()->isRowSelected(index.row(), index.parent())
                 ? rows_text(header, rows)
                 : row_text(header, index);
  describe(index, out);
  const RunPointer& run = selection().run();
  if (out.item && run != nullptr && out.item->rank < run->ranks.size()) {
    const RankData& rank = *run->ranks[out.item->rank];
    out.time = run->shown(rank, interval_of(rank, *out.item)).start;
    out.unit = out.unit ? out.unit : unit_of(rank, *out.item);
  }
  return out;
}

}  // namespace shardlens::gui
