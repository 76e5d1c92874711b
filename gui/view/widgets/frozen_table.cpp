#include "gui/view/widgets/frozen_table.h"

#include <algorithm>

#include <QCoreApplication>
#include <QHeaderView>
#include <QPainter>
#include <QScrollBar>

#include "gui/view/widgets/elided_header.h"

namespace shardlens::gui {

// Shows the first column of the table below it, and passes the mouse on to that table.
class FrozenColumn : public QTableView {
 public:
  explicit FrozenColumn(QTableView& table) : QTableView(&table), table_(table) {
    elide_header(*this);
    setFrameShape(QFrame::NoFrame);
    setFocusPolicy(Qt::NoFocus);
    setFocusProxy(&table);  // also for the look of selected rows
    setAlternatingRowColors(true);
    setWordWrap(false);
    setSelectionBehavior(QAbstractItemView::SelectRows);
    setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
    setVerticalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
    setVerticalScrollMode(table.verticalScrollMode());
    verticalHeader()->hide();
    horizontalHeader()->setSectionsClickable(false);
  }

 protected:
  bool viewportEvent(QEvent* event) override {
    switch (event->type()) {
      case QEvent::MouseButtonPress:
      case QEvent::MouseButtonRelease:
      case QEvent::MouseButtonDblClick:
      case QEvent::MouseMove:
      case QEvent::Wheel:
      case QEvent::ContextMenu:
        // Both viewports begin at the same point, so positions are the same.
        return QCoreApplication::sendEvent(table_.viewport(), event);
      default:
        return QTableView::viewportEvent(event);
    }
  }
  void paintEvent(QPaintEvent* event) override {
    QTableView::paintEvent(event);
    if (table_.horizontalScrollBar()->value() > 0) {  // other columns are behind it
      QPainter painter(viewport());
      painter.setPen(palette().color(QPalette::Mid));
      painter.drawLine(viewport()->width() - 1, 0, viewport()->width() - 1, viewport()->height());
    }
  }

 private:
  QTableView& table_;
};

FrozenTable::FrozenTable(QWidget* parent) : QTableView(parent), frozen_(nullptr) {
  elide_header(*this);
  setHorizontalScrollMode(QAbstractItemView::ScrollPerPixel);
  frozen_ = new FrozenColumn(*this);
  // The user drags either border.
  connect(horizontalHeader(), &QHeaderView::sectionResized, this,
          [this](int column, int /*before*/, int now) {
            if (column == 0) {
              frozen_->setColumnWidth(0, now);
              placeFrozen();
            }
          });
  connect(frozen_->horizontalHeader(), &QHeaderView::sectionResized, this,
          [this](int column, int /*before*/, int now) {
            if (column == 0) {
              setColumnWidth(0, now);
            }
          });
  connect(horizontalScrollBar(), &QScrollBar::valueChanged, frozen_,
          [this] { frozen_->viewport()->update(); });
  connect(verticalScrollBar(), &QScrollBar::valueChanged, frozen_->verticalScrollBar(),
          &QScrollBar::setValue);
  connect(frozen_->verticalScrollBar(), &QScrollBar::valueChanged, verticalScrollBar(),
          &QScrollBar::setValue);
  // A hidden row has no height.
  connect(verticalHeader(), &QHeaderView::sectionResized, frozen_,
          [this](int row, int /*before*/, int now) {
            frozen_->setRowHidden(row, now == 0);
            if (now > 0) {
              frozen_->setRowHeight(row, now);
            }
          });
}

void FrozenTable::setModel(QAbstractItemModel* model) {
  QTableView::setModel(model);
  frozen_->setModel(model);
  frozen_->setSelectionModel(selectionModel());
  frozen_->setAccessibleName(accessibleName());
  frozen_->verticalHeader()->setDefaultSectionSize(verticalHeader()->defaultSectionSize());
  connect(model, &QAbstractItemModel::modelReset, frozen_, [this] { hideOthers(); });
  hideOthers();
}

void FrozenTable::hideOthers() {
  for (int column = 1; column < model()->columnCount(); ++column) {
    frozen_->setColumnHidden(column, true);
  }
  frozen_->setColumnWidth(0, columnWidth(0));
  placeFrozen();
}

void FrozenTable::setCellDelegate(QAbstractItemDelegate* delegate) {
  setItemDelegate(delegate);
  frozen_->setItemDelegate(delegate);
}

const QTableView& FrozenTable::frozen() const {
  return *frozen_;
}

void FrozenTable::placeFrozen() {
  if (frozen_ == nullptr || model() == nullptr) {
    return;
  }
  const int height = horizontalHeader()->height();
  frozen_->horizontalHeader()->setFixedHeight(height);
  const QPoint corner = viewport()->geometry().topLeft() - QPoint(0, height);
  frozen_->setGeometry({corner, QSize(std::min(columnWidth(0), viewport()->width()),
                                      viewport()->height() + height)});
  frozen_->setVisible(model()->columnCount() > 1);
}

void FrozenTable::resizeEvent(QResizeEvent* event) {
  QTableView::resizeEvent(event);
  placeFrozen();
}

// Also when a scroll bar comes or goes.
void FrozenTable::updateGeometries() {
  QTableView::updateGeometries();
  placeFrozen();
}

void FrozenTable::scrollTo(const QModelIndex& index, ScrollHint hint) {
  const int before = horizontalScrollBar()->value();
  QTableView::scrollTo(index, hint);
  if (index.column() == 0) {
    horizontalScrollBar()->setValue(before);
  } else if (index.isValid()) {
    showColumn(index.column());
  }
}

void FrozenTable::showColumn(int column) {
  const int left = columnViewportPosition(column);
  const int right = left + columnWidth(column) - viewport()->width();
  const int hidden = frozen_->width() - left;
  QScrollBar& bar = *horizontalScrollBar();
  if (hidden > 0) {
    bar.setValue(bar.value() - hidden);
  } else if (right > 0) {
    bar.setValue(bar.value() + std::min(right, -hidden));
  }
}

}  // namespace shardlens::gui
