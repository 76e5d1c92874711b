#include "gui/view/widgets/elided_header.h"

#include <QHelpEvent>
#include <QStyleOptionHeader>
#include <QTableView>
#include <QToolTip>

#include "gui/view/widgets/text_lines.h"

namespace shardlens::gui {
namespace {

constexpr int kPadding = 13;  // of the style sheet, with the border

}  // namespace

ElidedHeader::ElidedHeader(QWidget* parent) : QHeaderView(Qt::Horizontal, parent) {}

QString ElidedHeader::title(int section) const {
  return model() == nullptr ? QString() : model()->headerData(section, orientation()).toString();
}

QString ElidedHeader::shownTitle(int section) const {
  const bool sorted = isSortIndicatorShown() && sortIndicatorSection() == section;
  const int mark = sorted ? style()->pixelMetric(QStyle::PM_HeaderMarkSize, nullptr, this) : 0;
  return fontMetrics().elidedText(title(section), Qt::ElideRight,
                                  sectionSize(section) - kPadding - mark);
}

void ElidedHeader::initStyleOptionForIndex(QStyleOptionHeader* option, int section) const {
  QHeaderView::initStyleOptionForIndex(option, section);
  option->text = shownTitle(section);
}

bool ElidedHeader::viewportEvent(QEvent* event) {
  if (event->type() == QEvent::ToolTip && model() != nullptr) {
    const auto* help = static_cast<QHelpEvent*>(event);
    const int section = logicalIndexAt(help->pos());
    const QString full = section < 0 ? QString() : title(section);
    const QString said =
        section < 0 ? full
                    : model()->headerData(section, orientation(), Qt::ToolTipRole).toString();
    if (said.isEmpty() && section >= 0 && shownTitle(section) != full) {
      QToolTip::showText(help->globalPos(), in_lines(full), viewport());
      return true;
    }
  }
  return QHeaderView::viewportEvent(event);
}

void elide_header(QTableView& view) {
  auto* header = new ElidedHeader(&view);
  header->setSectionsClickable(true);
  header->setHighlightSections(false);
  view.setHorizontalHeader(header);
}

}  // namespace shardlens::gui
