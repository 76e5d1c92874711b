#include <QApplication>
#include <QContextMenuEvent>
#include <QHeaderView>
#include <QKeyEvent>
#include <QTableView>
#include <QTreeView>

#include "gui/view/panels/compare_panel.h"
#include "gui/view/panels/panels.h"
#include "gui/view/panels/what_if_panel.h"

namespace shardlens::gui {
namespace {

// The row as the view shows it: visible columns in their order on the screen, separated by tabs.
QString row_text(const QHeaderView& header, const QModelIndex& index) {
  QStringList cells;
  for (int at = 0; at < header.count(); ++at) {
    const int column = header.logicalIndex(at);
    if (!header.isSectionHidden(column)) {
      cells.append(index.siblingAtColumn(column).data().toString());
    }
  }
  return cells.join(u'\t');
}

// In these views Left and Right fold trees and move along rows, although they are shortcuts
// elsewhere.
class ArrowKeys : public QObject {
 public:
  using QObject::QObject;

 protected:
  bool eventFilter(QObject* /*watched*/, QEvent* event) override {
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
};

}  // namespace

void Panels::makeMenus() {
  auto* arrows = new ArrowKeys(this);
  for (const Panel& panel : panels_) {
    if (panel.view == nullptr) {
      continue;
    }
    QAbstractItemView* view = panel.view;
    view->installEventFilter(arrows);
    view->setContextMenuPolicy(Qt::CustomContextMenu);
    connect(view, &QWidget::customContextMenuRequested, this, [this, view](const QPoint& where) {
      QModelIndex index = view->indexAt(where);
      if (QWidget* keyboard = QApplication::focusWidget();
          !index.isValid() && keyboard == view && view->currentIndex().isValid()) {
        index = view->currentIndex();
      }
      emit menuRequested(target(*view, index), view->viewport()->mapToGlobal(where));
    });
  }
}

MenuTarget Panels::target(const QAbstractItemView& view, const QModelIndex& index) const {
  MenuTarget out;
  if (const int rows = view.model()->rowCount(); rows > 0 && rows <= kCopiedRows) {
    out.table = to_csv(*view.model());
  }
  if (!index.isValid()) {
    return out;
  }
  const auto* as_tree = qobject_cast<const QTreeView*>(&view);
  const auto* table = qobject_cast<const QTableView*>(&view);
  out.text = row_text(as_tree != nullptr ? *as_tree->header() : *table->horizontalHeader(), index);
  if (&view == tree_view_) {
    out.unit = this->tree.unitAt(index);
  } else if (&view == ownership_view_) {
    out.unit = ownership.unitAt(index);
  } else if (&view == exposed_view_) {
    out.item = exposed.itemAt(index);
  } else if (&view == order_view_) {
    out.item = order.itemAt(index);
    out.unit = order.unitAt(index);
  } else if (&view == event_view_) {
    out.item = Selection::Item{shown_rank_, Lane::Source::kEvents, events.eventAt(index)};
  } else if (&view == &compare_->view()) {
    out.unit = compare_->tree.unitAt(index);
  }
  const RunPointer& run = context_.run();
  if (out.item && run != nullptr && out.item->rank < run->ranks.size()) {
    const RankData& rank = *run->ranks[out.item->rank];
    out.time = run->shown(rank, interval_of(rank, *out.item)).start;
    out.unit = out.unit ? out.unit : unit_of(rank, *out.item);
  }
  return out;
}

}  // namespace shardlens::gui
