#include "gui/view/panel_parts/memory_plot.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <QHelpEvent>
#include <QMouseEvent>
#include <QToolTip>
#include <QWheelEvent>

#include "gui/model/base/plot_scale.h"
#include "gui/model/base/time_axis.h"
#include "gui/model/base/words.h"
#include "gui/model/lanes/residency.h"
#include "gui/view/panel_parts/memory_inks.h"
#include "gui/view/widgets/time_wheel.h"

namespace shardlens::gui {
namespace {

constexpr double kPlotSide = 8;
constexpr double kBytesWidth = 62, kNarrowestScale = 260;  // a narrower plot has no scale of bytes
constexpr double kLegendRow = 16, kAxisHeight = 16, kNotesHeight = 16;
constexpr double kLowestNoted = 110;  // a lower plot has no notes, and a legend of one row
constexpr double kAxisCharacter = 8,
                 kAxisLabel = 80;  // pixels, about: of a character, between labels
constexpr double kNameAt = 14;     // from the square of a legend to its name
constexpr double kFarLimit = 1.5;  // a limit that is farther away would make the curve flat

// From the one that is allocated all the time to those that come and go.
constexpr sim::MemoryCategory kStacked[] = {
    sim::MemoryCategory::kParameters, sim::MemoryCategory::kOptimizer,
    sim::MemoryCategory::kGradients,  sim::MemoryCategory::kActivations,
    sim::MemoryCategory::kUnsharded,  sim::MemoryCategory::kCommunication};

Bytes bytes_of(const sim::MemoryCurve::Point& point, sim::MemoryCategory category) {
  return point.bytes[static_cast<size_t>(category)];
}

}  // namespace

MemoryPlot::MemoryPlot(QWidget* parent) : DrawnWidget(parent) {
  setAccessibleName(tr("Memory through a step"));
  setSizePolicy(QSizePolicy::Expanding, QSizePolicy::Expanding);
  setMouseTracking(true);
}

void MemoryPlot::show(Shown shown) {
  shown_ = std::move(shown);
  setVisible(!shown_.now.empty());
  if (axis_.bounds().end != length()) {
    axis_.setBounds({0, length()});
  }
  placeLegend();
  update();
}

void MemoryPlot::setCursorTime(std::optional<Nanoseconds> time) {
  if (time != cursor_) {
    cursor_ = time;
    update();
  }
}

void MemoryPlot::resizeEvent(QResizeEvent* /*event*/) {
  placeLegend();
  axis_.setWidth(static_cast<int>(std::max(1.0, area().width())));
}

QRectF MemoryPlot::area() const {
  const double bottom = height() < kLowestNoted ? kAxisHeight : kAxisHeight + kNotesHeight;
  const double left = width() < kNarrowestScale ? kPlotSide : kBytesWidth;
  return {left, top_, width() - left - kPlotSide, height() - top_ - bottom};
}

Nanoseconds MemoryPlot::length() const {
  Nanoseconds out = std::max(shown_.now.end, shown_.before.empty() ? 0 : shown_.before.end);
  for (const Shown::Measured& each : shown_.measured) {
    out = std::max(out, each.time);
  }
  return std::max<Nanoseconds>(out, 1);
}

Bytes MemoryPlot::highest() const {
  Bytes out = std::max<Bytes>(1, shown_.now.points[shown_.now.peak].sum());
  if (!shown_.before.empty()) {
    out = std::max(out, shown_.before.points[shown_.before.peak].sum());
  }
  for (const Shown::Measured& each : shown_.measured) {
    out = std::max(out, each.bytes);
  }
  const bool near = static_cast<double>(shown_.limit) < kFarLimit * static_cast<double>(out);
  return near ? std::max(out, shown_.limit) : out;
}

Nanoseconds MemoryPlot::timeAt(double x) const {
  return std::clamp<Nanoseconds>(axis_.toTime(x - area().left()), 0, length());
}

bool MemoryPlot::isInView(Nanoseconds time) const {
  return time >= axis_.view().start && time <= axis_.view().end;
}

double MemoryPlot::xOf(Nanoseconds time) const {
  return area().left() + axis_.toPixel(time);
}

double MemoryPlot::yOf(Bytes bytes) const {
  return area().bottom() -
         area().height() * static_cast<double>(bytes) / static_cast<double>(highest());
}

QString MemoryPlot::textAt(Nanoseconds time) const {
  if (shown_.now.empty()) {
    return {};
  }
  const sim::MemoryCurve::Point& point = shown_.now.at(time);
  QStringList lines{
      tr("%1 at %2: %3 allocated").arg(shown_.title, durationText(time), bytesText(point.sum()))};
  for (const sim::MemoryCategory category : kStacked) {
    if (bytes_of(point, category) > 0) {
      lines.append(QStringLiteral("%1 %2").arg(words(name_of(category)),
                                               bytesText(bytes_of(point, category))));
    }
  }
  if (shown_.run != nullptr && !shown_.run->ranks.empty()) {
    const RankData& rank = *shown_.run->ranks.front();
    QStringList units;
    for (const std::string& unit :
         gathered_at(rank.residencies, shown_.run->own(rank, {time, time}).start)) {
      units.append(QString::fromStdString(unit_label(unit)));
    }
    lines.append(units.empty() ? tr("no unit is gathered")
                               : tr("gathered: %1").arg(units.join(QStringLiteral(", "))));
  }
  return lines.join(u'\n');
}

void MemoryPlot::placeLegend() {
  constexpr double kSquare = 10, kGap = 8;
  const QFontMetricsF metrics(font());
  const bool one_row = height() < kLowestNoted;
  legend_.clear();
  double left = kPlotSide, top = 6;
  for (const sim::MemoryCategory category : kStacked) {
    const bool allocated = std::ranges::any_of(
        shown_.now.points, [category](const auto& point) { return bytes_of(point, category) > 0; });
    const double wide = kNameAt + metrics.horizontalAdvance(words(name_of(category))) + 6;
    if (allocated && left + wide > width() && left > kPlotSide) {
      if (one_row) {
        break;
      }
      left = kPlotSide;
      top += kLegendRow;
    }
    if (allocated) {
      legend_.push_back({category, {left, top, kSquare, kSquare}});
      left += wide + kGap;
    }
  }
  top_ = top + kLegendRow - 2;
}

void MemoryPlot::drawLegend(Canvas& canvas) const {
  for (const Named& each : legend_) {
    canvas.fill(each.square, ink_of(each.category), 1);
    canvas.text({each.square.left() + kNameAt, each.square.top() - 4, static_cast<double>(width()),
                 kLegendRow + 2},
                words(name_of(each.category)), Ink::kFaintText);
  }
}

// Each pixel shows the highest moment in it, so that no peak is lost.
void MemoryPlot::drawStack(Canvas& canvas) const {
  const std::vector<sim::MemoryCurve::Point>& points = shown_.now.points;
  const QRectF inside = area();
  const double right = std::min(inside.right(), xOf(shown_.now.end));
  auto next = static_cast<size_t>(
      std::ranges::lower_bound(points, axis_.view().start, {}, &sim::MemoryCurve::Point::time) -
      points.begin());
  const sim::MemoryCurve::Point* before = next > 0 ? &points[next - 1] : nullptr;
  const sim::MemoryCurve::Point* drawn = nullptr;  // from `from` on
  double from = inside.left();
  const auto flush = [&](double until) {
    double bottom = inside.bottom();
    for (const sim::MemoryCategory category : kStacked) {
      const double high = drawn == nullptr ? 0 : inside.bottom() - yOf(bytes_of(*drawn, category));
      if (high > 0 && until > from) {
        canvas.fill({from, bottom - high, until - from, high}, ink_of(category), 0.9);
        bottom -= high;
      }
    }
    from = until;
  };
  for (double x = inside.left(); x < right; x += 1) {
    const Nanoseconds until = timeAt(x + 1);
    const sim::MemoryCurve::Point* highest = before;
    for (; next < points.size() && points[next].time < until; ++next) {
      before = &points[next];
      highest = highest == nullptr || before->sum() > highest->sum() ? before : highest;
    }
    if (highest != drawn) {
      flush(x);
      drawn = highest;
    }
  }
  flush(right);
}

void MemoryPlot::drawLines(Canvas& canvas) const {
  const QRectF inside = area();
  const auto step_to = [&](QPointF& last, double x, double y, Ink ink, bool dashed) {
    canvas.line(last, {x, last.y()}, ink, dashed);
    canvas.line({x, last.y()}, {x, y}, ink, dashed);
    last = {x, y};
  };
  if (!shown_.before.empty()) {
    QPointF last(inside.left(), yOf(shown_.before.at(axis_.view().start).sum()));
    Bytes most = 0;  // since `last`: a pixel shows the highest moment in it
    for (const sim::MemoryCurve::Point& point : shown_.before.points) {
      if (!isInView(point.time)) {
        continue;
      }
      most = std::max(most, point.sum());
      if (xOf(point.time) - last.x() >= 1) {
        step_to(last, xOf(point.time), yOf(most), Ink::kText, true);
        most = 0;
      }
    }
  }
  if (!shown_.measured.empty()) {
    QPointF last(std::max(inside.left(), xOf(shown_.measured.front().time)),
                 yOf(shown_.measured.front().bytes));
    for (const Shown::Measured& each : shown_.measured) {
      if (isInView(each.time)) {
        step_to(last, xOf(each.time), yOf(each.bytes), Ink::kAccent, false);
      } else if (each.time < axis_.view().start) {
        last.setY(yOf(each.bytes));
      }
    }
  }
  if (shown_.limit > 0 && shown_.limit <= highest()) {
    canvas.line({inside.left(), yOf(shown_.limit)}, {inside.right(), yOf(shown_.limit)},
                Ink::kWarning, false);
  }
}

void MemoryPlot::drawPeak(Canvas& canvas) const {
  const QRectF inside = area();
  const sim::MemoryCurve::Point& peak = shown_.now.points[shown_.now.peak];
  const double x = xOf(peak.time);
  if (isInView(peak.time)) {
    canvas.line({x, inside.top()}, {x, inside.bottom()}, Ink::kText, true);
  }
}

// Below the stack.
void MemoryPlot::drawBytes(Canvas& canvas) const {
  constexpr double kBetween = 24, kTickHeight = 16;
  const QRectF inside = area();
  if (inside.left() < kBytesWidth) {
    return;
  }
  const auto most = static_cast<double>(highest());
  const char* names[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t name = 0;
  double unit = 1;
  for (; name + 1 < std::size(names) && most >= 1024 * unit; ++name) {
    unit *= 1024;
  }
  for (const double bytes :
       round_ticks(0, most, std::max(1, static_cast<int>(inside.height() / kBetween)), unit)) {
    const double y = yOf(static_cast<Bytes>(bytes));
    canvas.line({inside.left(), y}, {inside.right(), y}, Ink::kGrid, false);
    canvas.text(
        {0, y - kTickHeight / 2, inside.left() - 4, kTickHeight},
        QStringLiteral("%1 %2").arg(QString::number(bytes / unit), QLatin1String(names[name])),
        Ink::kFaintText, Qt::AlignRight | Qt::AlignVCenter);
  }
}

void MemoryPlot::drawAxis(Canvas& canvas) const {
  const QRectF inside = area();
  for (const TimeAxis::Tick& tick : axis_.ticks(kAxisLabel)) {
    const double x = inside.left() + tick.x;
    const bool major = !tick.label.isEmpty();
    canvas.line({x, inside.bottom()}, {x, inside.bottom() + (major ? 6 : 3)}, Ink::kGrid, false);
    if (major &&
        tick.x + kAxisCharacter * static_cast<double>(tick.label.size()) < inside.width()) {
      canvas.text({x + 3, inside.bottom() + 1, kAxisLabel, kAxisHeight - 1}, tick.label,
                  Ink::kFaintText);
    }
  }
}

void MemoryPlot::drawNotes(Canvas& canvas) const {
  QString lines;
  if (!shown_.before.empty()) {
    lines += tr("dashed: %1. ").arg(shown_.before_title);
  }
  if (!shown_.measured.empty()) {
    lines += tr("line: measured. ");
  }
  if (shown_.limit > 0) {
    lines += shown_.limit <= highest() ? tr("upper line: %1 available").arg(bytesText(shown_.limit))
                                       : tr("%1 available").arg(bytesText(shown_.limit));
  }
  canvas.text(
      {kPlotSide, height() - kNotesHeight, width() - 2 * kPlotSide, kNotesHeight},
      tr("%1 through its step of %2. ").arg(shown_.title, durationText(shown_.now.end)) + lines,
      Ink::kFaintText);
}

void MemoryPlot::drawOn(Canvas& canvas) const {
  if (!shown_.unfit.isEmpty()) {
    canvas.text(QRectF(rect()).adjusted(kPlotSide, 0, -kPlotSide, 0), shown_.unfit, Ink::kWarning,
                Qt::AlignCenter, true);
  }
  if (shown_.now.empty()) {
    return;
  }
  canvas.fill(area(), Ink::kBand, 1);
  drawLegend(canvas);
  drawBytes(canvas);
  drawStack(canvas);
  drawLines(canvas);
  drawPeak(canvas);
  drawAxis(canvas);
  if (height() >= kLowestNoted) {
    drawNotes(canvas);
  }
  if (cursor_ && isInView(*cursor_)) {
    canvas.line({xOf(*cursor_), area().top()}, {xOf(*cursor_), area().bottom()}, Ink::kAccent,
                false);
  }
  if (pointer_) {
    canvas.line({*pointer_, area().top()}, {*pointer_, area().bottom()}, Ink::kFaintText, false);
  }
}

void MemoryPlot::mousePressEvent(QMouseEvent* event) {
  last_ = event->position().x();
}

void MemoryPlot::mouseMoveEvent(QMouseEvent* event) {
  const double x = event->position().x();
  if (event->buttons() & (Qt::LeftButton | Qt::MiddleButton)) {
    axis_.pan(std::exchange(last_, x) - x);
  }
  pointer_ = x;
  emit pointed(timeAt(x));
  update();
}

void MemoryPlot::mouseDoubleClickEvent(QMouseEvent* /*event*/) {
  axis_.fitAll();
  update();
}

void MemoryPlot::wheelEvent(QWheelEvent* event) {
  axis_.turn(turn_of(*event), event->position().x() - area().left());
  event->accept();
  update();
}

void MemoryPlot::leaveEvent(QEvent* /*event*/) {
  pointer_.reset();
  emit pointed(std::nullopt);
  update();
}

bool MemoryPlot::event(QEvent* event) {
  if (event->type() == QEvent::ToolTip) {
    const auto* help = static_cast<QHelpEvent*>(event);
    QToolTip::showText(help->globalPos(), textAt(timeAt(help->pos().x())), this);
    return true;
  }
  return DrawnWidget::event(event);
}

}  // namespace shardlens::gui
