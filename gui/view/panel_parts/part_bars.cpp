#include "gui/view/panel_parts/part_bars.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <QHelpEvent>
#include <QMouseEvent>
#include <QToolTip>

namespace shardlens::gui {
namespace {

constexpr double kBetweenNames = 12;
constexpr double kMostOfText = 0.45;  // of the width, for labels and for texts
constexpr double kBarsMargin = 8, kCaptionHeight = 16, kLegendHeight = 20, kRow = 20,
                 kShortestRow = 9, kThickest = 15;
constexpr std::array<Ink, PartBars::kParts> kPartInks{Ink::kCompute, Ink::kExposed, Ink::kCopy,
                                                      Ink::kIdle};

}  // namespace

void draw_part(Canvas& canvas, const QRectF& area, int part) {
  constexpr int kExposedPart = 1;
  constexpr double kBehindHatch = 0.3;
  const Ink ink = kPartInks.at(static_cast<size_t>(part));
  canvas.fill(area, ink, part == kExposedPart ? kBehindHatch : 1);
  if (part == kExposedPart) {
    canvas.hatch(area, ink);
  }
}

QString short_name_of_part(int part) {
  return part == 1   ? QObject::tr("exposed comm")
         : part == 2 ? QObject::tr("copies")
                     : name_of_part(part);
}

double PartBars::Bar::sum() const {
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

std::array<double, PartBars::kParts> parts_of(const StepFigures& figures, double unit) {
  return {
      static_cast<double>(figures.compute) / unit, static_cast<double>(figures.exposed_comm) / unit,
      static_cast<double>(figures.exposed_copy) / unit, static_cast<double>(figures.idle) / unit};
}

QString name_of_part(int part) {
  switch (part) {
    case 0:
      return QObject::tr("compute");
    case 1:
      return QObject::tr("exposed communication");
    case 2:
      return QObject::tr("exposed copies");
    default:
      return QObject::tr("idle");
  }
}

PartBars::PartBars(const QString& name, const QString& caption, QWidget* parent)
    : DrawnWidget(parent), caption_(caption) {
  setAccessibleName(name);
}

void PartBars::setLegend(bool shown) {
  legend_ = shown;
  updateGeometry();
  update();
}

// The caption is above the legend where there is room, else before it.
double PartBars::top() const {
  if (!legend_) {
    return kBarsMargin / 2;
  }
  const double both = kLegendHeight + kCaptionHeight;
  return !caption_.isEmpty() && height() >= both + kThickest * static_cast<double>(bars_.size())
             ? both
             : kLegendHeight;
}

void PartBars::show(std::vector<Bar> bars) {
  bars_ = std::move(bars);
  updateGeometry();
  update();
}

QSize PartBars::sizeHint() const {
  const double above = !legend_             ? kBarsMargin / 2
                       : caption_.isEmpty() ? kLegendHeight
                                            : kLegendHeight + kCaptionHeight;
  return {360, static_cast<int>(above + kRow * static_cast<double>(bars_.size()) + kBarsMargin)};
}

double PartBars::widthOf(QString Bar::*text) const {
  const QFontMetricsF metrics(font());
  double widest = 0;
  for (const Bar& bar : bars_) {
    if (!bar.failed || text == &Bar::label) {
      widest = std::max(widest, metrics.horizontalAdvance(bar.*text));
    }
  }
  return std::min(widest, kMostOfText * width());
}

QRectF PartBars::rowOf(size_t bar) const {
  const double room = height() - top() - kBarsMargin;
  const double row =
      std::clamp(room / static_cast<double>(std::max<size_t>(1, bars_.size())), kShortestRow, kRow);
  return {0, top() + row * static_cast<double>(bar), static_cast<double>(width()), row};
}

// The caption, and what the colours are, with short names if there is not enough room; colours for
// which there is none are left out, since the window's headline names them too.
void PartBars::drawLegend(Canvas& canvas) const {
  const QFontMetricsF metrics(font());
  const double legend = top() - kLegendHeight;
  const double caption = metrics.horizontalAdvance(caption_);
  const auto entry = [&metrics](bool narrow, int part) {
    return 14 + metrics.horizontalAdvance(narrow ? short_name_of_part(part) : name_of_part(part));
  };
  const auto wide = [&entry](bool narrow) {
    double out = 0;
    for (int part = 0; part < kParts; ++part) {
      out += entry(narrow, part) + kBetweenNames;
    }
    return out;
  };
  const bool above = legend > 0;
  double x = above || caption_.isEmpty() ? kBarsMargin : kBarsMargin + caption + 12;
  const bool narrow = x + wide(false) > width();
  canvas.text({kBarsMargin, above ? 2.0 : 0.0, caption + 2, above ? kCaptionHeight : kLegendHeight},
              caption_, Ink::kText);
  for (int part = 0; part < kParts && x + entry(narrow, part) <= width(); ++part) {
    draw_part(canvas, {x, legend + 5, 10, 10}, part);
    canvas.text({x + 14, legend, entry(narrow, part) - 12, kLegendHeight},
                narrow ? short_name_of_part(part) : name_of_part(part), Ink::kFaintText);
    x += entry(narrow, part) + kBetweenNames;
  }
}

void PartBars::drawOn(Canvas& canvas) const {
  canvas.fill(rect(), Ink::kBackground);
  if (bars_.empty()) {
    return;
  }
  if (legend_) {
    drawLegend(canvas);
  }
  double most = 0;
  for (const Bar& bar : bars_) {
    most = std::max(most, bar.sum());
  }
  const double label = widthOf(&Bar::label) + 2, text = widthOf(&Bar::text) + 2;
  const double left = kBarsMargin + label + 6;
  const double room = std::max(10.0, width() - left - text - 2 * kBarsMargin);
  for (size_t i = 0; i < bars_.size(); ++i) {
    const Bar& bar = bars_[i];
    const QRectF row = rowOf(i);
    if (row.bottom() > height()) {
      break;
    }
    if (bar.chosen) {
      canvas.fill(row, Ink::kBand);
    }
    const double thick = std::min(kThickest, row.height() - 3);
    canvas.text({kBarsMargin, row.top(), label, row.height()}, bar.label, Ink::kText,
                Qt::AlignRight | Qt::AlignVCenter, bar.chosen);
    double at = left;
    for (int part = 0; part < kParts && most > 0 && !bar.failed; ++part) {
      const double wide = bar.parts[static_cast<size_t>(part)] / most * room;
      const QRectF piece(at, row.center().y() - thick / 2, wide, thick);
      draw_part(canvas, piece, part);
      at += wide;
    }
    const double end = bar.failed ? left : at + 6;
    canvas.text({end, row.top(), width() - end - 4.0, row.height()}, bar.text,
                bar.failed ? Ink::kFaintText : Ink::kText);
  }
}

std::optional<size_t> PartBars::barAt(QPointF position) const {
  for (size_t i = 0; i < bars_.size(); ++i) {
    if (rowOf(i).contains(position)) {
      return i;
    }
  }
  return std::nullopt;
}

void PartBars::mousePressEvent(QMouseEvent* event) {
  if (const auto bar = barAt(event->position())) {
    emit chosen(*bar);
  }
}

bool PartBars::event(QEvent* event) {
  if (event->type() == QEvent::ToolTip) {
    const auto* help = static_cast<QHelpEvent*>(event);
    const auto bar = barAt(help->pos());
    QToolTip::showText(help->globalPos(), bar ? bars_[*bar].help : QString(), this);
    return true;
  }
  return DrawnWidget::event(event);
}

}  // namespace shardlens::gui
