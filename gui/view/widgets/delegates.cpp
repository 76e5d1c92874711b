#include "gui/view/widgets/delegates.h"

#include <QPainter>

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

void EmphasisDelegate::initStyleOption(QStyleOptionViewItem* option,
                                       const QModelIndex& index) const {
  QStyledItemDelegate::initStyleOption(option, index);
  option->font.setBold(index.data(role_).toBool());
  // Names of units differ at their ends too, so they are elided in the middle; sentences at the
  // end.
  option->textElideMode = option->text.count(u' ') <= 1 ? Qt::ElideMiddle : Qt::ElideRight;
}

}  // namespace shardlens::gui
