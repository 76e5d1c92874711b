#include "gui/view/panel_parts/waterfall_plot.h"

#include <algorithm>
#include <cmath>
#include <span>

#include <QPainter>

#include "gui/model/base/time_axis.h"
#include "gui/view/widgets/painter_canvas.h"

namespace shardlens::gui {
namespace {

constexpr double kLine = 18;  // pixels of a row of the waterfall

// nullopt: no part of the step time.
std::optional<Ink> ink_of(check::StepPart part) {
  switch (part) {
    case check::StepPart::kCompute:
      return Ink::kCompute;
    case check::StepPart::kExposed:
      return Ink::kExposed;
    case check::StepPart::kCopy:
      return Ink::kCopy;
    case check::StepPart::kIdle:
      return Ink::kIdle;
    case check::StepPart::kNone:
      break;
  }
  return std::nullopt;
}

}  // namespace

const check::MetricResult* metric_of(const check::CheckResult& result, check::Metric metric) {
  const auto found = std::find_if(result.metrics.begin(), result.metrics.end(),
                                  [&](const auto& m) { return m.metric == metric; });
  return found == result.metrics.end() ? nullptr : &*found;
}

WaterfallPlot::WaterfallPlot(QWidget* parent) : QWidget(parent), theme_(&Theme::light()) {
  setAccessibleName(tr("Change from A's step to B's, part by part"));
}

void WaterfallPlot::setTheme(const Theme& theme) {
  theme_ = &theme;
  update();
}

void WaterfallPlot::show(std::shared_ptr<const check::Comparison> comparison) {
  step_.reset();
  parts_.clear();
  if (comparison != nullptr) {
    const check::MetricResult* step = metric_of(comparison->result, check::Metric::kStepTime);
    if (step != nullptr) {
      step_ = step->effect;
    }
    const std::span<const check::MetricRow> rows = check::metric_table();
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto ink = ink_of(rows[i].part);
      const check::MetricResult* metric =
          ink ? metric_of(comparison->result, static_cast<check::Metric>(i)) : nullptr;
      if (metric != nullptr && (metric->effect.baseline != 0 || metric->effect.candidate != 0)) {
        parts_.push_back({tr(rows[i].label.data()), *ink, metric->effect.change});
      }
    }
  }
  QStringList said;
  for (const Part& part : parts_) {
    said.append(QStringLiteral("%1 %2").arg(part.name, deltaText(std::llround(part.delta))));
  }
  setAccessibleDescription(said.join(QStringLiteral("; ")));
  updateGeometry();
  update();
}

QSize WaterfallPlot::minimumSizeHint() const {
  return {270, static_cast<int>(kLine * static_cast<double>(parts_.size() + 2) + 8)};
}

void WaterfallPlot::paintEvent(QPaintEvent* /*event*/) {
  QPainter painter(this);
  painter.setFont(font());
  PainterCanvas canvas(painter, *theme_);
  canvas.fill(rect(), Ink::kBackground, 1);
  if (!step_) {
    return;
  }
  constexpr double kNames = 150, kNumbers = 108;
  // From zero on, so that the lengths of all bars compare.
  double high = std::max(step_->baseline, step_->candidate), at = step_->baseline;
  for (const Part& part : parts_) {
    at += part.delta;
    high = std::max(high, at);
  }
  const double left = kNames, width = std::max(20.0, this->width() - kNames - kNumbers);
  const auto x = [&](double ns) {
    return left + width * std::clamp(ns / std::max(high, 1.0), 0.0, 1.0);
  };
  double top = 4;
  const auto row = [&](const QString& name, const QString& number, bool bold) {
    canvas.text({8, top, kNames - 12, kLine}, name, bold ? Ink::kText : Ink::kFaintText,
                Qt::AlignLeft | Qt::AlignVCenter, bold);
    canvas.text({left + width, top, kNumbers - 8, kLine}, number, Ink::kText,
                Qt::AlignRight | Qt::AlignVCenter, bold);
    top += kLine;
  };
  canvas.fill({left, top + 4, x(step_->baseline) - left, kLine - 8}, Ink::kHost, 1);
  row(tr("A, a step"), durationText(std::llround(step_->baseline)), true);
  at = step_->baseline;
  for (const Part& part : parts_) {
    const double from = x(at), to = x(at + part.delta);
    const QRectF bar(std::min(from, to), top + 3, std::max(1.0, std::abs(to - from)), kLine - 6);
    canvas.fill(bar, part.ink, part.ink == Ink::kExposed ? 0.45 : 1);
    if (part.ink == Ink::kExposed && bar.width() > 2) {
      canvas.hatch(bar, Ink::kExposed);
    }
    canvas.line({to, top + 3}, {to, top + kLine + 3}, Ink::kGrid, false);
    at += part.delta;
    row(part.name, deltaText(std::llround(part.delta)), false);
  }
  canvas.fill({left, top + 4, x(step_->candidate) - left, kLine - 8}, Ink::kHost, 1);
  row(tr("B, a step"), durationText(std::llround(step_->candidate)), true);
}

}  // namespace shardlens::gui
