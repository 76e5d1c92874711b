#include "gui/view/panel_parts/overlap_map.h"

#include <algorithm>
#include <utility>

#include <QHelpEvent>
#include <QToolTip>

namespace shardlens::gui {
namespace {

constexpr double kCellHeight = 22, kMapTitle = 20, kMapMargin = 8, kWidestCell = 110;

QString percent_text(double share) {
  return QObject::tr("%1 %").arg(100 * share, 0, 'f', 0);
}

}  // namespace

OverlapMap::OverlapMap(QWidget* parent) : DrawnWidget(parent) {
  setAccessibleName(tr("Overlap of groups"));
  setVisible(false);
}

void OverlapMap::show(GroupOverlaps overlaps) {
  overlaps_ = std::move(overlaps);
  setVisible(!overlaps_.rows.empty());
  updateGeometry();
  update();
}

QSize OverlapMap::sizeHint() const {
  const double cells = kCellHeight * static_cast<double>(overlaps_.rows.size() + 1);
  return {360, static_cast<int>(kMapTitle + cells + kMapMargin)};
}

double OverlapMap::namesWidth() const {
  const QFontMetricsF metrics(font());
  double widest = 0;
  for (const GroupOverlaps::Row& row : overlaps_.rows) {
    widest = std::max(widest, metrics.horizontalAdvance(row.group));
  }
  return std::min(widest + 2 * kMapMargin, 0.4 * width());
}

QRectF OverlapMap::cellAt(size_t row, size_t column) const {
  const double left = namesWidth();
  const double each =
      std::min((width() - left - kMapMargin) /
                   std::max<double>(1, static_cast<double>(overlaps_.columns.size())),
               kWidestCell);
  return {left + each * static_cast<double>(column),
          kMapTitle + kCellHeight * static_cast<double>(row + 1), each, kCellHeight};
}

void OverlapMap::drawOn(Canvas& canvas) const {
  if (overlaps_.rows.empty()) {
    return;
  }
  canvas.text({kMapMargin, 0, width() - 2 * kMapMargin, kMapTitle},
              tr("Share of a group's time in which the column ran too"), Ink::kFaintText);
  for (qsizetype column = 0; column < overlaps_.columns.size(); ++column) {
    const QRectF below = cellAt(0, static_cast<size_t>(column));
    canvas.text(below.translated(0, -kCellHeight).adjusted(2, 0, -2, 0), overlaps_.columns[column],
                Ink::kText, Qt::AlignCenter);
  }
  for (size_t row = 0; row < overlaps_.rows.size(); ++row) {
    const GroupOverlaps::Row& of = overlaps_.rows[row];
    const QRectF first = cellAt(row, 0);
    canvas.text({kMapMargin, first.top(), first.left() - 2 * kMapMargin, first.height()}, of.group,
                Ink::kText);
    for (size_t column = 0; column < of.shares.size(); ++column) {
      const QRectF cell = cellAt(row, column).adjusted(0, 0, -1, -1);
      const std::optional<double> share = of.shares[column];
      canvas.fill(cell, Ink::kBand);
      if (share) {
        canvas.fill(cell, Ink::kCompute, *share);
        canvas.label(cell.adjusted(4, 0, -4, 0), percent_text(*share),
                     *share > 0.5 ? Ink::kCompute : Ink::kBand);
      }
    }
  }
}

bool OverlapMap::event(QEvent* event) {
  if (event->type() != QEvent::ToolTip) {
    return DrawnWidget::event(event);
  }
  const auto* help = static_cast<QHelpEvent*>(event);
  QString text;
  for (size_t row = 0; row < overlaps_.rows.size(); ++row) {
    const GroupOverlaps::Row& of = overlaps_.rows[row];
    for (size_t column = 0; column < of.shares.size(); ++column) {
      if (of.shares[column] && cellAt(row, column).contains(help->pos())) {
        text = tr("%1 of the time of %2, %3 ran too")
                   .arg(percent_text(*of.shares[column]), of.group,
                        overlaps_.columns[static_cast<qsizetype>(column)]);
      }
    }
  }
  QToolTip::showText(help->globalPos(), text, this);
  return true;
}

}  // namespace shardlens::gui
