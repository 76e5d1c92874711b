#include "gui/view/panel_parts/space_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <QApplication>
#include <QHelpEvent>
#include <QMouseEvent>
#include <QToolTip>

#include "gui/model/base/time_axis.h"
#include "gui/model/what_if/fit_text.h"

namespace shardlens::gui {
namespace {

constexpr double kPlotLeft = 62, kPlotRight = 12, kPlotTop = 28, kPlotBottom = 36, kUnfitWidth = 74;
constexpr double kEntryRow = 18;
constexpr double kNear = 9, kMarkHalf = 2.5, kFrontHalf = 4, kLegendTop = 4;
constexpr double kMs = 1e6, kSpaceGiB = 1024.0 * 1024 * 1024;
constexpr double kDim = 0.12, kPlain = 0.6;
constexpr double kNameHeight = 16, kNameGap = 8;  // of a version's name, and to its cross

constexpr std::array<Ink, 8> kValueInks{Ink::kCompute,   Ink::kAllGather, Ink::kReduceScatter,
                                        Ink::kAllReduce, Ink::kCopy,      Ink::kMemory,
                                        Ink::kOtherComm, Ink::kGathered};

QString short_number(double value) {
  return QString::number(value, 'g', 4);
}

QRectF square(QPointF at, double half) {
  return {at.x() - half, at.y() - half, 2 * half, 2 * half};
}

// Where a version's name can be: right or left of its cross, in the rows next to it first.
std::vector<QRectF> places_of_name(QPointF at, double wide) {
  constexpr int kRows = 4;  // above the cross, and below it
  std::vector<QRectF> out;
  for (int row = 0; row < kRows; ++row) {
    for (const double top : {-kNameHeight * (row + 1), kNameHeight * row}) {
      for (const double left : {kNameGap, -kNameGap - wide}) {
        out.emplace_back(at.x() + left, at.y() + top, wide, kNameHeight);
      }
    }
  }
  return out;
}

}  // namespace

Ink ink_of_value(size_t value) {
  return kValueInks.at(value % kValueInks.size());
}

SpacePlot::SpacePlot(QWidget* parent) : DrawnWidget(parent) {
  setAccessibleName(tr("Step time and peak memory of all plans of the search"));
}

void SpacePlot::show(const PlanSpace& space) {
  space_ = &space;
  chosen_.reset();
  lit_.reset();
  brushed_.clear();
  is_brushed_.clear();
  scale();
  setKnob(knob_);
}

void SpacePlot::showVersions(std::vector<Version> versions) {
  versions_ = std::move(versions);
  scale();
  update();
}

// Versions are in the plot, but those that are far from all plans do not squeeze these.
void SpacePlot::scale() {
  steps_ = peaks_ = {};
  has_unfit_ = false;
  if (space_ == nullptr) {
    return;
  }
  Bytes highest = 0;
  for (const SpacePoint& point : space_->points) {
    if (point.fits) {
      steps_.add(static_cast<double>(point.step()));
      peaks_.add(static_cast<double>(point.peak));
      highest = std::max(highest, point.peak);
    }
    has_unfit_ = has_unfit_ || !point.fits;
  }
  if (space_->available > 0 && space_->available < 3 * highest) {
    peaks_.add(static_cast<double>(space_->available));
  }
  for (const Version& version : versions_) {
    if (version.step > 0 && !space_->points.empty()) {
      steps_.add(static_cast<double>(version.step));
      peaks_.add(static_cast<double>(version.peak));
    }
  }
  steps_.settle();
  peaks_.settle();
}

void SpacePlot::setKnob(size_t knob) {
  knob_ = knob;
  lit_.reset();
  value_of_.clear();
  values_.clear();
  if (space_ != nullptr) {
    const SpaceKnob& of = space_knobs().at(knob);
    values_ = values_of(of, *space_);
    for (const SpacePoint& point : space_->points) {
      const auto value =
          std::ranges::find(values_, of.value(point.candidate, space_->base.world_size));
      value_of_.push_back(static_cast<uint32_t>(value - values_.begin()));
    }
  }
  layOutLegend();
  update();
}

void SpacePlot::setChosen(std::optional<size_t> point) {
  chosen_ = point;
  update();
}

void SpacePlot::clearBrush() {
  if (!brushed_.empty()) {
    brushed_.clear();
    is_brushed_.clear();
    update();
    emit brushChanged();
  }
}

QRectF SpacePlot::area() const {
  const double more = legend_.empty() ? 0 : legend_.back().area.top() - kLegendTop;
  return QRectF(rect()).adjusted(kPlotLeft, kPlotTop + more,
                                 -(has_unfit_ ? kPlotRight + kUnfitWidth : kPlotRight),
                                 -kPlotBottom);
}

QPointF SpacePlot::place(Nanoseconds step, Bytes peak, bool fits) const {
  const QRectF of = area();
  const double y = of.bottom() - peaks_.position(static_cast<double>(peak)) * of.height();
  const double kept = std::clamp(y, of.top() + 4, of.bottom() - 4);
  return {fits ? of.left() + steps_.position(static_cast<double>(step)) * of.width()
               : of.right() + kUnfitWidth / 2,
          fits ? y : kept};
}

QPointF SpacePlot::placeOf(size_t point) const {
  const SpacePoint& of = space_->points.at(point);
  return place(of.step(), of.peak, of.fits);
}

Ink SpacePlot::inkOf(size_t point) const {
  return ink_of_value(value_of_.at(point));
}

bool SpacePlot::isDim(size_t point) const {
  return (lit_ && value_of_[point] != *lit_) || (!is_brushed_.empty() && !is_brushed_[point]);
}

double SpacePlot::legendLeft() const {
  return std::max(kPlotLeft, QFontMetricsF(font()).horizontalAdvance(tr("peak, GiB")) + 24);
}

// In two rows if it does not fit into one and the plot is not low.
void SpacePlot::layOutLegend() {
  constexpr int kLowPlot = 150;
  legend_.clear();
  const QFontMetricsF metrics(font());
  const double left = legendLeft() + metrics.horizontalAdvance(space_knobs()[knob_].title) + 12;
  double x = left, y = kLegendTop;
  for (const QString& value : values_) {
    const double wide = 14 + metrics.horizontalAdvance(value) + 2;
    if (x + wide > width() && y == kLegendTop && height() >= kLowPlot) {
      x = left;
      y += kEntryRow;
    }
    if (x + wide > width()) {
      break;
    }
    legend_.push_back({value, {x, y, wide, kEntryRow}});
    x += wide + 10;
  }
}

void SpacePlot::resizeEvent(QResizeEvent* /*event*/) {
  layOutLegend();
}

std::optional<size_t> SpacePlot::pointAt(QPointF position) const {
  std::optional<size_t> best;
  double nearest = kNear;
  for (size_t i = 0; space_ != nullptr && i < space_->points.size(); ++i) {
    const double away = QPointF(placeOf(i) - position).manhattanLength();
    // Of several points at one place, takes one of the front, which is drawn above the others.
    if (away < nearest || (away <= nearest && best && space_->points[i].front)) {
      best = i;
      nearest = away;
    }
  }
  return best;
}

// Above the line of the limit if there is room, else below it; along it where the text covers the
// fewest points, at the right if there is a choice.
QRectF SpacePlot::placeOfLimit(double line, double wide) const {
  constexpr int kPlaces = 9;
  const QRectF of = area();
  const double y = line - (line - of.top() > 18 ? 18 : 0);
  QRectF best;
  size_t fewest = space_->points.size() + 1;
  for (int i = 0; i < kPlaces; ++i) {
    const double share = static_cast<double>(i) / (kPlaces - 1);
    const QRectF place(of.right() - 4 - wide - share * (of.width() - wide - 8), y, wide, 18);
    size_t covered = 0;
    for (size_t point = 0; point < space_->points.size(); ++point) {
      covered += place.intersects(square(placeOf(point), kFrontHalf)) ? 1 : 0;
    }
    if (covered < fewest) {
      fewest = covered;
      best = place;
    }
  }
  return best;
}

void SpacePlot::drawAxes(Canvas& canvas) const {
  const QRectF of = area();
  const QFontMetricsF metrics(font());
  const int across = std::max(2, static_cast<int>(of.width() / 74));
  for (const double tick : steps_.ticks(across, kMs)) {
    const double x = of.left() + steps_.position(tick) * of.width();
    canvas.line({x, of.top()}, {x, of.bottom()}, Ink::kGrid, false);
    canvas.text({x - 40, of.bottom() + 1, 80, 17}, short_number(tick / kMs), Ink::kFaintText,
                Qt::AlignHCenter | Qt::AlignVCenter, false);
  }
  const int down = std::max(4, static_cast<int>(of.height() / 26));
  for (const double tick : peaks_.ticks(down, kSpaceGiB)) {
    const double y = of.bottom() - peaks_.position(tick) * of.height();
    canvas.line({of.left(), y}, {of.right(), y}, Ink::kGrid, false);
    canvas.text({0, y - 9, kPlotLeft - 5, 18}, short_number(tick / kSpaceGiB), Ink::kFaintText,
                Qt::AlignRight | Qt::AlignVCenter, false);
  }
  canvas.text({of.left(), of.bottom() + 17, of.width(), 18},
              tr("step, ms%1").arg(steps_.isLogarithmic() ? tr(" (logarithmic)") : QString()),
              Ink::kFaintText, Qt::AlignRight | Qt::AlignVCenter, false);
  canvas.text({4, kLegendTop, legendLeft() - 8, 18}, tr("peak, GiB"), Ink::kFaintText,
              Qt::AlignLeft | Qt::AlignVCenter, false);
  if (const double limit = static_cast<double>(space_->available);
      limit > 0 && peaks_.position(limit) < 1) {
    const double y = of.bottom() - peaks_.position(limit) * of.height();
    canvas.fill({of.left(), of.top(), of.width(), y - of.top()}, Ink::kWarning, 0.06);
    canvas.line({of.left(), y}, {of.right(), y}, Ink::kWarning, true);
    const QString text = tr("memory %1").arg(bytesText(space_->available));
    canvas.text(placeOfLimit(y, metrics.horizontalAdvance(text) + 4), text, Ink::kWarning,
                Qt::AlignRight | Qt::AlignVCenter, false);
  }
  if (has_unfit_) {
    canvas.line({of.right(), of.top()}, {of.right(), of.bottom()}, Ink::kGrid, false);
    canvas.text({of.right() + 1, of.bottom() + 1, kUnfitWidth + kPlotRight - 2, 17},
                tr("does not fit"), Ink::kWarning, Qt::AlignHCenter | Qt::AlignVCenter, false);
  }
}

void SpacePlot::drawPoints(Canvas& canvas) const {
  std::vector<size_t> front;
  for (size_t i = 0; i < space_->points.size(); ++i) {
    const SpacePoint& point = space_->points[i];
    if (point.front) {
      front.push_back(i);
    } else if (point.fits) {
      canvas.fill(square(placeOf(i), kMarkHalf), inkOf(i), isDim(i) ? kDim : kPlain);
    } else {
      canvas.frame(square(placeOf(i), kMarkHalf), inkOf(i), 1);
    }
  }
  std::ranges::sort(front, {}, [this](size_t i) { return space_->points[i].step(); });
  for (size_t i = 1; i < front.size(); ++i) {
    canvas.line(placeOf(front[i - 1]), placeOf(front[i]), Ink::kFaintText, true);
  }
  const QRectF of = area();
  for (const size_t i : front) {
    const SpacePoint& point = space_->points[i];
    const QPointF at = placeOf(i);
    if (point.interval) {
      const auto x = [&](Nanoseconds step) {
        return std::clamp(place(step, point.peak, true).x(), of.left(), of.right());
      };
      const double low = x(point.interval->low), high = x(point.interval->high);
      canvas.line({low, at.y()}, {high, at.y()}, Ink::kFaintText, false);
      for (const double end : {low, high}) {
        canvas.line({end, at.y() - 3}, {end, at.y() + 3}, Ink::kFaintText, false);
      }
    }
    canvas.fill(square(at, kFrontHalf), inkOf(i), isDim(i) ? kDim : 1);
    canvas.frame(square(at, kFrontHalf), Ink::kText, 1);
  }
  if (chosen_ && *chosen_ < space_->points.size()) {
    canvas.frame(square(placeOf(*chosen_), kFrontHalf + 3), Ink::kAccent, 2);
  }
}

// Names do not cover each other: the current version's is placed first; one for which there is no
// room is left out.
void SpacePlot::drawVersions(Canvas& canvas) const {
  std::vector<const Version*> named;
  for (const Version& version : versions_) {
    const QPointF at = place(version.step, version.peak, true);
    canvas.line(at + QPointF(-5, -5), at + QPointF(5, 5), Ink::kText, false);
    canvas.line(at + QPointF(-5, 5), at + QPointF(5, -5), Ink::kText, false);
    named.push_back(&version);
  }
  std::stable_partition(named.begin(), named.end(),
                        [](const Version* version) { return version->chosen; });
  std::vector<QRectF> taken;
  for (const Version* version : named) {
    const double wide = QFontMetricsF(font()).horizontalAdvance(version->name) + 8;
    for (const QRectF& each : places_of_name(place(version->step, version->peak, true), wide)) {
      const bool free = std::ranges::none_of(
          taken, [&each](const QRectF& other) { return other.intersects(each); });
      if (free && QRectF(rect()).contains(each)) {
        taken.push_back(each);
        canvas.text(each, version->name, version->chosen ? Ink::kAccent : Ink::kText,
                    Qt::AlignHCenter | Qt::AlignVCenter, version->chosen);
        break;
      }
    }
  }
}

void SpacePlot::drawOn(Canvas& canvas) const {
  canvas.fill(rect(), Ink::kBackground);
  if (space_ == nullptr || space_->points.empty()) {
    canvas.text(QRectF(rect()).adjusted(12, 8, -12, -8),
                tr("Find best predicts all plans of a search; here they are by step and memory."),
                Ink::kFaintText, Qt::AlignHCenter | Qt::AlignVCenter, false);
    return;
  }
  drawAxes(canvas);
  canvas.text({legendLeft(), kLegendTop, width() - legendLeft(), 18}, space_knobs()[knob_].title,
              Ink::kFaintText, Qt::AlignLeft | Qt::AlignVCenter, false);
  for (size_t i = 0; i < legend_.size(); ++i) {
    const QRectF& at = legend_[i].area;
    canvas.fill({at.left(), at.top() + 4, 10, 10}, ink_of_value(i), !lit_ || *lit_ == i ? 1 : kDim);
    canvas.text(at.adjusted(14, 0, 0, 0), legend_[i].value, Ink::kText,
                Qt::AlignLeft | Qt::AlignVCenter, false);
  }
  drawPoints(canvas);
  drawVersions(canvas);
  if (!dragged_.isEmpty()) {
    canvas.fill(dragged_, Ink::kAccent, 0.12);
    canvas.frame(dragged_, Ink::kAccent, 1);
  }
}

void SpacePlot::brush(const QRectF& rectangle) {
  brushed_.clear();
  is_brushed_.assign(space_->points.size(), false);
  for (size_t i = 0; i < space_->points.size(); ++i) {
    if (rectangle.contains(placeOf(i))) {
      brushed_.push_back(i);
      is_brushed_[i] = true;
    }
  }
  if (brushed_.empty()) {
    is_brushed_.clear();
  }
}

void SpacePlot::mousePressEvent(QMouseEvent* event) {
  if (space_ == nullptr || event->button() != Qt::LeftButton) {
    return;
  }
  for (size_t i = 0; i < legend_.size(); ++i) {
    if (legend_[i].area.contains(event->position())) {
      lit_ = lit_ == i ? std::nullopt : std::optional(i);
      update();
      return;
    }
  }
  pressed_ = event->position();
}

void SpacePlot::mouseMoveEvent(QMouseEvent* event) {
  if (pressed_ &&
      (!dragged_.isEmpty() || QPointF(event->position() - *pressed_).manhattanLength() >=
                                  QApplication::startDragDistance())) {
    dragged_ = QRectF(*pressed_, event->position()).normalized() & QRectF(rect());
    update();
  }
}

void SpacePlot::mouseReleaseEvent(QMouseEvent* event) {
  if (!pressed_) {
    return;
  }
  const QPointF pressed = *std::exchange(pressed_, std::nullopt);
  const QRectF dragged = std::exchange(dragged_, {});
  if (!dragged.isEmpty()) {
    brush(dragged);
    emit brushChanged();
  } else if (const auto point = pointAt(event->position()); point && pointAt(pressed) == point) {
    chosen_ = point;
    emit pointChosen(*point);
  } else {
    clearBrush();
  }
  update();
}

void SpacePlot::mouseDoubleClickEvent(QMouseEvent* event) {
  if (const auto point = pointAt(event->position())) {
    emit pointOpened(*point);
  }
}

bool SpacePlot::event(QEvent* event) {
  if (event->type() == QEvent::ToolTip) {
    const auto* help = static_cast<QHelpEvent*>(event);
    const auto point = pointAt(help->pos());
    QString text;
    if (point) {
      const SpacePoint& of = space_->points[*point];
      text = QStringLiteral("%1\n%2").arg(
          space_->title_of(*point),
          of.fits ? tr("%1, %2").arg(durationText(of.step()), bytesText(of.peak))
                  : tr("does not fit: %1").arg(needText(of.peak, of.reserved, space_->available)));
      if (of.interval) {
        text += tr("\n90 % interval %1 to %2")
                    .arg(durationText(of.interval->low), durationText(of.interval->high));
      }
    }
    QToolTip::showText(help->globalPos(), text, this);
    return true;
  }
  return DrawnWidget::event(event);
}

}  // namespace shardlens::gui
