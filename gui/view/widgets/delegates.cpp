#include "gui/view/widgets/delegates.h"

#include <QPainter>

#include "gui/model/tables/diagnostic_table.h"
#include "gui/model/tables/event_table.h"
#include "gui/model/tables/exposed_table.h"
#include "gui/model/tables/order_table.h"
#include "gui/model/tables/ownership_table.h"
#include "gui/view/widgets/painter_canvas.h"

namespace shardlens::gui {

ShareDelegate::ShareDelegate(int role, QObject* parent)
    : QStyledItemDelegate(parent), role_(role), theme_(&Theme::light()) {}

void ShareDelegate::paint(QPainter* painter,
                          const QStyleOptionViewItem& option,
                          const QModelIndex& index) const {
  QStyledItemDelegate::paint(painter, option, index);
  const double share = index.data(role_).toDouble();
  if (share > 0) {
    PainterCanvas canvas(*painter, *theme_);
    const QRectF area = QRectF(option.rect).adjusted(3, option.rect.height() - 5, -3, -1);
    const QRectF bar(area.right() - area.width() * share, area.top(), area.width() * share,
                     area.height());
    canvas.fill(bar, Ink::kExposed, 0.45);
    canvas.hatch(bar, Ink::kExposed);
  }
}

void SliceDelegate::paint(QPainter* painter,
                          const QStyleOptionViewItem& option,
                          const QModelIndex& index) const {
  if (index.column() >= OwnershipTable::kFixedColumns) {
    const double from = index.data(OwnershipTable::kFromRole).toDouble();
    const double to = index.data(OwnershipTable::kToRole).toDouble();
    PainterCanvas canvas(*painter, *theme_);
    const QRectF area = QRectF(option.rect).adjusted(2, 2, -2, -2);
    canvas.fill(area, Ink::kBand, 1);
    if (to > from) {
      canvas.fill({area.left() + area.width() * from, area.top(),
                   std::max(2.0, area.width() * (to - from)), area.height()},
                  Ink::kCopy, 0.45);
    }
  }
  QStyledItemDelegate::paint(painter, option, index);
}

// Names of parameters differ at their ends, so they are elided at the start; other text at the end.
void SliceDelegate::initStyleOption(QStyleOptionViewItem* option, const QModelIndex& index) const {
  QStyledItemDelegate::initStyleOption(option, index);
  option->textElideMode = index.column() == 0 ? Qt::ElideLeft : Qt::ElideRight;
}

void EmphasisDelegate::initStyleOption(QStyleOptionViewItem* option,
                                       const QModelIndex& index) const {
  QStyledItemDelegate::initStyleOption(option, index);
  option->font.setBold(index.data(role_).toBool());
  // Names of units differ at their ends too, so they are elided in the middle; sentences at the
  // end.
  option->textElideMode = option->text.count(u' ') <= 1 ? Qt::ElideMiddle : Qt::ElideRight;
}

}  // namespace shardlens::gui
