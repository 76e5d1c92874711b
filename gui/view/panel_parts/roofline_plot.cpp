#include "gui/view/panel_parts/roofline_plot.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <QHelpEvent>
#include <QMouseEvent>
#include <QToolTip>

#include "gui/model/base/time_axis.h"

namespace shardlens::gui {
namespace {

constexpr double kRoofLeft = 46, kRoofBottom = 18, kRoofTop = 18, kRoofRight = 10;
constexpr double kLeastDot = 4, kMostDot = 11;  // pixels, half of the width

// The power of ten at or below the value, or at or above it.
double power_below(double value) {
  return std::pow(10, std::floor(std::log10(value)));
}
double power_above(double value) {
  return std::pow(10, std::ceil(std::log10(value)));
}

// Powers of ten, of a short axis with 2 and 5 between them.
std::vector<double> roofline_ticks(double low, double high) {
  constexpr double kShort = 1000;  // from the lowest to the highest value
  std::vector<double> out;
  for (double power = low; power <= high * 1.001; power *= 10) {
    for (const double times : {1, 2, 5}) {
      if ((times == 1 || high / low < kShort) && times * power <= high * 1.001) {
        out.push_back(times * power);
      }
    }
  }
  return out;
}

}  // namespace

RooflinePlot::RooflinePlot(QWidget* parent) : DrawnWidget(parent) {
  setAccessibleName(tr("Operators below the roofline"));
  setSizePolicy(QSizePolicy::Expanding, QSizePolicy::Expanding);
}

void RooflinePlot::show(const RooflineTable& table) {
  dots_.clear();
  chosen_.reset();
  const auto& hardware = table.ofRun() ? table.ofRun() : table.ofPlan();
  gpu_ = hardware ? std::optional(hardware->gpu) : std::nullopt;
  for (size_t i = 0; i < table.rows().size(); ++i) {
    const RooflineTable::Row& row = table.rows()[i];
    if (row.tflops() <= 0 || row.intensity() <= 0) {
      continue;
    }
    Dot dot{i, row.intensity(), row.tflops(), 0, row.measured, {}};
    dot.half = kLeastDot + (kMostDot - kLeastDot) * std::sqrt(row.share);
    dot.text = tr("%1 (%2): %3 TFLOP/s, %4 FLOP/byte, %5 a step")
                   .arg(row.name, row.measured ? tr("recorded") : tr("simulated"))
                   .arg(row.tflops(), 0, 'f', 1)
                   .arg(row.intensity(), 0, 'f', 1)
                   .arg(durationText(std::llround(row.time)));
    dots_.push_back(dot);
  }
  if (!dots_.empty()) {
    const auto by_x = std::ranges::minmax(dots_, {}, &Dot::intensity);
    const auto by_y = std::ranges::minmax(dots_, {}, &Dot::tflops);
    low_x_ = power_below(by_x.min.intensity);
    high_x_ = power_above(by_x.max.intensity * 1.01);
    low_y_ = power_below(by_y.min.tflops);
    high_y_ = by_y.max.tflops * 1.6;
    if (gpu_) {
      high_x_ = std::max(high_x_, power_above(gpu_->half_tflops * 1e3 / gpu_->memory_gbps));
      high_y_ = std::max(high_y_, gpu_->half_tflops * 1.6);
    }
  }
  update();
}

void RooflinePlot::setChosen(std::optional<size_t> row) {
  chosen_ = row;
  update();
}

QRectF RooflinePlot::area() const {
  return {kRoofLeft, kRoofTop, std::max(1.0, width() - kRoofLeft - kRoofRight),
          std::max(1.0, height() - kRoofTop - kRoofBottom)};
}

double RooflinePlot::xOf(double intensity) const {
  return area().left() + area().width() * std::log(intensity / low_x_) / std::log(high_x_ / low_x_);
}

double RooflinePlot::yOf(double tflops) const {
  return area().bottom() - area().height() * std::log(tflops / low_y_) / std::log(high_y_ / low_y_);
}

QPointF RooflinePlot::placeOf(size_t row) const {
  const Dot& dot = *std::ranges::find(dots_, row, &Dot::row);
  return {xOf(dot.intensity), yOf(dot.tflops)};
}

std::optional<size_t> RooflinePlot::rowAt(const QPointF& position) const {
  std::optional<size_t> best;
  double nearest = kMostDot + 2;
  for (const Dot& dot : dots_) {
    const double distance =
        std::hypot(xOf(dot.intensity) - position.x(), yOf(dot.tflops) - position.y());
    if (distance < std::min(nearest, dot.half + 2)) {
      nearest = distance;
      best = dot.row;
    }
  }
  return best;
}

void RooflinePlot::drawAxes(Canvas& canvas) const {
  const QRectF inside = area();
  canvas.fill(inside, Ink::kBand, 1);
  for (const double x : roofline_ticks(low_x_, high_x_)) {
    canvas.line({xOf(x), inside.top()}, {xOf(x), inside.bottom()}, Ink::kGrid, false);
    if (xOf(x) + 30 < inside.right()) {
      canvas.text({xOf(x) + 2, inside.bottom() + 1, 60, kRoofBottom - 2}, QString::number(x),
                  Ink::kFaintText);
    }
  }
  for (const double y : roofline_ticks(low_y_, high_y_)) {
    canvas.line({inside.left(), yOf(y)}, {inside.right(), yOf(y)}, Ink::kGrid, false);
    if (yOf(y) - 8 >= inside.top()) {
      canvas.text({0, yOf(y) - 8, kRoofLeft - 4, 16}, QString::number(y), Ink::kFaintText,
                  Qt::AlignRight | Qt::AlignVCenter);
    }
  }
  canvas.text({2, 0, width() - 4.0, kRoofTop - 2}, tr("TFLOP/s over FLOP/byte"), Ink::kFaintText);
}

// The bandwidth of memory up to the rates of half precision and of fp32.
void RooflinePlot::drawRoof(Canvas& canvas) const {
  if (!gpu_) {
    return;
  }
  const QRectF inside = area();
  const auto clipped = [&](double x) { return std::clamp(x, low_x_, high_x_); };
  const double slope = gpu_->memory_gbps / 1e3;  // TFLOP/s for each FLOP/byte
  const double knee = gpu_->half_tflops / slope;
  const double left = clipped(low_y_ / slope);
  if (left < clipped(knee)) {
    canvas.line({xOf(left), yOf(left * slope)}, {xOf(clipped(knee)), yOf(clipped(knee) * slope)},
                Ink::kText, false);
  }
  for (const auto& [rate, name] :
       {std::pair(gpu_->half_tflops, tr("bf16, fp16")), std::pair(gpu_->fp32_tflops, tr("fp32"))}) {
    const double from = clipped(rate / slope);
    if (rate >= low_y_ && from < high_x_) {
      canvas.line({xOf(from), yOf(rate)}, {inside.right(), yOf(rate)}, Ink::kText,
                  rate != gpu_->half_tflops);
      canvas.text({inside.right() - 170, yOf(rate) - 16, 166, 15},
                  tr("%1 %2 TFLOP/s").arg(name).arg(rate, 0, 'f', 0), Ink::kFaintText,
                  Qt::AlignRight | Qt::AlignVCenter);
    }
  }
}

void RooflinePlot::drawOn(Canvas& canvas) const {
  canvas.fill(rect(), Ink::kBackground, 1);
  if (dots_.empty()) {
    canvas.text(QRectF(rect()).adjusted(8, 0, -8, 0), tr("No operators with FLOPs"),
                Ink::kFaintText, Qt::AlignCenter);
    return;
  }
  drawAxes(canvas);
  drawRoof(canvas);
  for (const Dot& dot : dots_) {
    const QRectF mark(xOf(dot.intensity) - dot.half, yOf(dot.tflops) - dot.half, 2 * dot.half,
                      2 * dot.half);
    if (dot.measured) {
      canvas.fill(mark, Ink::kCompute, 0.75);
    }
    canvas.frame(mark, Ink::kCompute, 1.5);
    if (dot.row == chosen_) {
      canvas.frame(mark.adjusted(-2, -2, 2, 2), Ink::kAccent, 2);
    }
  }
}

void RooflinePlot::mousePressEvent(QMouseEvent* event) {
  if (const auto row = rowAt(event->position())) {
    emit rowChosen(*row);
  }
}

bool RooflinePlot::event(QEvent* event) {
  if (event->type() == QEvent::ToolTip) {
    const auto* help = static_cast<QHelpEvent*>(event);
    const auto row = rowAt(help->pos());
    const auto dot = row ? std::ranges::find(dots_, *row, &Dot::row) : dots_.end();
    QToolTip::showText(help->globalPos(), dot == dots_.end() ? QString() : dot->text, this);
    return true;
  }
  return DrawnWidget::event(event);
}

}  // namespace shardlens::gui
