#include "gui/view/widgets/delegates.h"

#include <QAbstractItemView>
#include <QHelpEvent>
#include <QPainter>
#include <QToolTip>

#include "gui/view/widgets/painter_canvas.h"
#include "gui/view/widgets/text_lines.h"

namespace shardlens::gui {

bool CellDelegate::helpEvent(QHelpEvent* event,
                             QAbstractItemView* view,
                             const QStyleOptionViewItem& option,
                             const QModelIndex& index) {
  if (event->type() != QEvent::ToolTip) {
    return QStyledItemDelegate::helpEvent(event, view, option, index);
  }
  QString text = index.data(Qt::ToolTipRole).toString();
  if (text.isEmpty() && sizeHint(option, index).width() > option.rect.width()) {
    text = index.data().toString();
  }
  QToolTip::showText(event->globalPos(), in_lines(text), view->viewport(), option.rect);
  return true;
}

// Names of units differ at their ends too, so they are elided in the middle; sentences at the end.
void CellDelegate::initStyleOption(QStyleOptionViewItem* option, const QModelIndex& index) const {
  QStyledItemDelegate::initStyleOption(option, index);
  option->textElideMode = option->text.count(u' ') <= 1 ? Qt::ElideMiddle : Qt::ElideRight;
}

ShareDelegate::ShareDelegate(int role, QObject* parent)
    : CellDelegate(parent), role_(role), theme_(&Theme::light()) {}

void ShareDelegate::paint(QPainter* painter,
                          const QStyleOptionViewItem& option,
                          const QModelIndex& index) const {
  QStyledItemDelegate::paint(painter, option, index);
  const double share = index.data(role_).toDouble();
  if (share > 0) {
    PainterCanvas canvas(*painter, *theme_);
    const QRectF area = QRectF(option.rect).adjusted(3, option.rect.height() - 4, -3, -1);
    const QRectF bar(area.right() - area.width() * share, area.top(), area.width() * share,
                     area.height());
    canvas.fill(bar, Ink::kExposed, 0.45);
    canvas.hatch(bar, Ink::kExposed);
  }
}

void EmphasisDelegate::initStyleOption(QStyleOptionViewItem* option,
                                       const QModelIndex& index) const {
  CellDelegate::initStyleOption(option, index);
  option->font.setBold(index.data(role_).toBool());
  if (index.data(ColumnTable::kTitleRole).toBool()) {
    option->font.setBold(true);
    option->state |= QStyle::State_Enabled;
    option->backgroundBrush = option->palette.brush(QPalette::Button);
  }
  if (index.data(ColumnTable::kErrorRole).toBool()) {
    option->palette.setColor(QPalette::Text, option->palette.color(QPalette::BrightText));
  }
}

}  // namespace shardlens::gui
