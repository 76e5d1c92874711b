#include "gui/view/panel_parts/peak_bars.h"

#include <algorithm>

#include <QHelpEvent>
#include <QPainter>
#include <QToolTip>

#include "gui/model/base/time_axis.h"
#include "gui/model/base/words.h"
#include "gui/view/panel_parts/memory_inks.h"
#include "gui/view/widgets/painter_canvas.h"

namespace shardlens::gui {
namespace {

constexpr double kBarHeight = 18, kVersionWidth = 34, kBarMargin = 6;

QString text_of(int category, Bytes bytes) {
  return QStringLiteral("%1 %2").arg(words(name_of(static_cast<sim::MemoryCategory>(category))),
                                     bytesText(bytes));
}

}  // namespace

PeakBars::PeakBars(QWidget* parent) : QWidget(parent), theme_(&Theme::light()) {
  setAccessibleName(tr("Peak memory by category"));
  setSizePolicy(QSizePolicy::Expanding, QSizePolicy::Fixed);
}

void PeakBars::setTheme(const Theme& theme) {
  theme_ = &theme;
  update();
}

void PeakBars::show(const std::vector<PeakTable::Peak>& peaks) {
  peaks_ = peaks;
  updateGeometry();
  update();
}

QSize PeakBars::sizeHint() const {
  return {400,
          static_cast<int>(2 * kBarMargin + (kBarHeight + 4) * static_cast<double>(peaks_.size()))};
}

double PeakBars::scale() const {
  constexpr double kFar = 1.5;  // a limit that is farther away would make the bars short
  Bytes most = 1;
  for (const PeakTable::Peak& peak : peaks_) {
    most = std::max(most, peak.sum());
  }
  for (const PeakTable::Peak& peak : peaks_) {
    if (static_cast<double>(peak.available) < kFar * static_cast<double>(most)) {
      most = std::max(most, peak.available);
    }
  }
  return std::max(1.0, width() - kVersionWidth - 3 * kBarMargin) / static_cast<double>(most);
}

void PeakBars::paintEvent(QPaintEvent* /*event*/) {
  QPainter painter(this);
  painter.setFont(font());
  PainterCanvas canvas(painter, *theme_);
  double top = kBarMargin;
  for (const PeakTable::Peak& peak : peaks_) {
    canvas.text({kBarMargin, top, kVersionWidth, kBarHeight}, peak.title,
                peak.need.isEmpty() ? Ink::kText : Ink::kWarning, Qt::AlignLeft | Qt::AlignVCenter,
                !peak.need.isEmpty());
    double left = kBarMargin + kVersionWidth;
    for (int category = 0; category < sim::kMemoryCategoryCount; ++category) {
      const Bytes bytes = peak.categories[static_cast<size_t>(category)];
      const double wide = scale() * static_cast<double>(bytes);
      const QRectF area(left, top, std::max(0.0, wide - 1), kBarHeight);
      const Ink ink = ink_of(static_cast<sim::MemoryCategory>(category));
      canvas.fill(area, ink, 1);
      const QString text = text_of(category, bytes);
      if (QFontMetricsF(font()).horizontalAdvance(text) + 6 < wide) {
        canvas.label(area.adjusted(3, 0, -3, 0), text, ink);
      }
      left += wide;
    }
    const double limit = kBarMargin + kVersionWidth + scale() * static_cast<double>(peak.available);
    if (peak.available > 0 && limit < width()) {
      canvas.line({limit, top - 3}, {limit, top + kBarHeight + 3}, Ink::kWarning, false);
    }
    top += kBarHeight + 4;
  }
}

bool PeakBars::event(QEvent* event) {
  if (event->type() == QEvent::ToolTip) {
    const auto* help = static_cast<QHelpEvent*>(event);
    const auto row =
        static_cast<size_t>(std::max(0.0, (help->pos().y() - kBarMargin) / (kBarHeight + 4)));
    QStringList lines;
    if (row < peaks_.size()) {
      lines.append(peaks_[row].need.isEmpty()
                       ? tr("%1: peak %2").arg(peaks_[row].title, bytesText(peaks_[row].sum()))
                       : tr("%1 does not fit: %2").arg(peaks_[row].title, peaks_[row].need));
      for (int category = 0; category < sim::kMemoryCategoryCount; ++category) {
        lines.append(text_of(category, peaks_[row].categories[static_cast<size_t>(category)]));
      }
    }
    QToolTip::showText(help->globalPos(), lines.join(u'\n'), this);
    return true;
  }
  return QWidget::event(event);
}

}  // namespace shardlens::gui
