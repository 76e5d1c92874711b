#include "gui/view/panel_parts/part_errors.h"

#include <algorithm>

namespace shardlens::gui {
namespace {

constexpr double kErrorsMargin = 8, kErrorsRow = 18, kLowestErrorsRow = 13, kErrorsSwatch = 14,
                 kErrorsGap = 10;
constexpr int kErrorLines = PartBars::kParts + 2;  // with the titles

}  // namespace

PartErrors::PartErrors(QWidget* parent) : DrawnWidget(parent) {
  setAccessibleName(tr("Error of each part of the predicted step"));
}

void PartErrors::show(const Rows& rows) {
  rows_ = rows;
  update();
}

QSize PartErrors::sizeHint() const {
  return {360, static_cast<int>(kErrorLines * kErrorsRow)};
}

QSize PartErrors::minimumSizeHint() const {
  return {375, static_cast<int>(kErrorLines * kLowestErrorsRow)};
}

void PartErrors::drawOn(Canvas& canvas) const {
  canvas.fill(rect(), Ink::kBackground);
  const QFontMetricsF metrics(font());
  QFont thick = font();
  thick.setBold(true);
  const double row = std::min(kErrorsRow, height() / static_cast<double>(kErrorLines));
  const Row titles{tr("predicted"), tr("measured"), tr("error")};
  double right = width() - kErrorsMargin;
  // Columns from the right to the left; what is left is the names'.
  for (QString Row::*text : {&Row::error, &Row::measured, &Row::predicted}) {
    double wide = std::max(metrics.horizontalAdvance(titles.*text),
                           QFontMetricsF(thick).horizontalAdvance(rows_.back().*text));
    for (const Row& each : rows_) {
      wide = std::max(wide, metrics.horizontalAdvance(each.*text));
    }
    const auto draw = [&](int line, const QString& shown, Ink ink, bool bold) {
      canvas.text({right - wide - 2, line * row, wide + 2, row}, shown, ink,
                  Qt::AlignRight | Qt::AlignVCenter, bold);
    };
    draw(0, titles.*text, Ink::kFaintText, false);
    for (int i = 0; i <= PartBars::kParts; ++i) {
      draw(i + 1, rows_.at(static_cast<size_t>(i)).*text, Ink::kText, i == PartBars::kParts);
    }
    right -= wide + kErrorsGap;
  }
  for (int part = 0; part <= PartBars::kParts; ++part) {
    const double top = (part + 1) * row;
    const bool sum = part == PartBars::kParts;
    if (sum) {
      canvas.line({kErrorsMargin, top}, {width() - kErrorsMargin, top}, Ink::kGrid, false);
    } else {
      draw_part(canvas, {kErrorsMargin, top + (row - 10) / 2, 10, 10}, part);
    }
    const double left = kErrorsMargin + kErrorsSwatch;
    const QString name = sum ? tr("step") : name_of_part(part);
    canvas.text(
        {left, top, std::max(0.0, right - left), row},
        sum || metrics.horizontalAdvance(name) <= right - left ? name : short_name_of_part(part),
        Ink::kText, Qt::AlignLeft | Qt::AlignVCenter, sum);
  }
}

}  // namespace shardlens::gui
