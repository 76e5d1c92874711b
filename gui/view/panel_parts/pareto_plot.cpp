#include "gui/view/panel_parts/pareto_plot.h"

#include <algorithm>

#include <QHelpEvent>
#include <QMouseEvent>
#include <QPainter>
#include <QToolTip>

#include "gui/model/base/time_axis.h"
#include "gui/model/what_if/fit_text.h"
#include "gui/view/widgets/painter_canvas.h"

namespace shardlens::gui {

std::vector<size_t> pareto(const std::vector<PlanVersion>& versions) {
  std::vector<size_t> order;
  for (size_t i = 0; i < versions.size(); ++i) {
    if (versions[i].hasStep()) {
      order.push_back(i);
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(versions[a].step(), versions[a].peak()) <
           std::pair(versions[b].step(), versions[b].peak());
  });
  std::vector<size_t> out;
  for (const size_t i : order) {
    if (out.empty() || versions[i].peak() < versions[out.back()].peak()) {
      out.push_back(i);
    }
  }
  return out;
}

ParetoPlot::ParetoPlot(PlanSession& session, PlanProposals& proposals, QWidget* parent)
    : QWidget(parent), session_(session), proposals_(proposals), theme_(&Theme::light()) {
  setAccessibleName(tr("Step time and peak memory of all versions"));
  connect(&session_, &PlanSession::simulatedOne, this, qOverload<>(&QWidget::update));
  connect(&session_, &PlanSession::stateChanged, this, qOverload<>(&QWidget::update));
  connect(&proposals_, &PlanProposals::changed, this, qOverload<>(&QWidget::update));
}

void ParetoPlot::setTheme(const Theme& theme) {
  theme_ = &theme;
  update();
}

std::vector<ParetoPlot::Dot> ParetoPlot::dots() const {
  std::vector<Dot> out;
  for (size_t i = 0; i < proposals_.list().size(); ++i) {
    const Proposal& each = proposals_.list()[i];
    if (each.found) {
      out.push_back({each.step, each.peak, i, true, true});
    }
  }
  const std::vector<PlanVersion>& versions = session_.versions();
  for (size_t i = 0; i < versions.size(); ++i) {
    if (versions[i].error.isEmpty()) {
      out.push_back({versions[i].step(), versions[i].peak(), i, false, versions[i].hasStep()});
    }
  }
  return out;
}

namespace {

constexpr double kApart = 9;  // versions whose marks are closer share a label: "v0 v1"

struct Bounds {
  double low_x = 1e300, high_x = 0, low_y = 1e300, high_y = 0;  // ns and bytes

  void add(Nanoseconds step, Bytes peak, bool has_step) {
    if (has_step) {
      low_x = std::min(low_x, static_cast<double>(step));
      high_x = std::max(high_x, static_cast<double>(step));
    }
    low_y = std::min(low_y, static_cast<double>(peak));
    high_y = std::max(high_y, static_cast<double>(peak));
  }
  // The device's memory, unless it is so far away that the plans would be one point.
  void addLimit(Bytes limit) {
    constexpr double kFar = 1.5;
    const auto y = static_cast<double>(limit);
    if (y > 0 && y < kFar * high_y) {
      low_y = std::min(low_y, y);
      high_y = std::max(high_y, y);
    }
  }
  [[nodiscard]] double yOf(double bytes, const QRectF& area) const {
    const double y = high_y > low_y ? (bytes - low_y) / (high_y - low_y) : 0.5;
    return area.bottom() - 10 - y * (area.height() - 20);
  }
  [[nodiscard]] QPointF place(Nanoseconds step,
                              Bytes peak,
                              bool has_step,
                              const QRectF& area) const {
    if (!has_step) {
      return {area.right() + 4, yOf(static_cast<double>(peak), area)};
    }
    const double x = high_x > low_x ? (static_cast<double>(step) - low_x) / (high_x - low_x) : 0.5;
    return {area.left() + 12 + x * (area.width() - 24), yOf(static_cast<double>(peak), area)};
  }
  [[nodiscard]] QPointF place(const PlanVersion& v, const QRectF& area) const {
    return place(v.step(), v.peak(), v.hasStep(), area);
  }
};

template <class Dots>
Bounds bounds_of(const Dots& dots, const PlanSession& session) {
  Bounds out;
  for (const auto& dot : dots) {
    out.add(dot.step, dot.peak, dot.has_step);
  }
  if (const PlanVersion* now = session.current(); now != nullptr && now->error.isEmpty()) {
    out.addLimit(now->prediction.available);
  }
  return out;
}

// Draws a mark for each version, and returns the marks that get a label.
std::vector<PlotMark> draw_marks(Canvas& canvas,
                                 const PlanSession& session,
                                 const Bounds& bounds,
                                 const QRectF& area) {
  std::vector<PlotMark> marks;
  const std::vector<PlanVersion>& versions = session.versions();
  for (size_t i = 0; i < versions.size(); ++i) {
    if (!versions[i].error.isEmpty()) {
      continue;
    }
    const QPointF p = bounds.place(versions[i], area);
    const bool chosen = &versions[i] == session.current();
    const QRectF mark(p.x() - 4, p.y() - 4, 8, 8);
    canvas.fill(mark,
                !versions[i].hasStep() ? Ink::kWarning
                : chosen               ? Ink::kAccent
                                       : Ink::kFaintText,
                1);
    const QString name =
        versions[i].hasStep() ? QStringLiteral("v%1").arg(i) : QStringLiteral("v%1 ✗").arg(i);
    const auto near = std::find_if(marks.begin(), marks.end(), [&](const PlotMark& m) {
      return QPointF(m.at - p).manhattanLength() < kApart;
    });
    if (near == marks.end()) {
      marks.push_back({p, name, chosen});
    } else {
      near->name += u' ' + name;
      near->chosen = near->chosen || chosen;
    }
  }
  return marks;
}

// The shortest and the longest step under the axis; only one if both do not fit.
void draw_ends(Canvas& canvas, const Bounds& bounds, const QFont& font, const QRectF& ends) {
  if (bounds.high_x == 0) {
    canvas.text(ends, QObject::tr("does not fit"), Ink::kWarning, Qt::AlignRight | Qt::AlignVCenter,
                false);
    return;
  }
  const QString low = durationText(static_cast<Nanoseconds>(bounds.low_x)),
                high = durationText(static_cast<Nanoseconds>(bounds.high_x));
  const bool both = QFontMetricsF(font).horizontalAdvance(low + high) + 8 < ends.width();
  if (both || bounds.high_x <= bounds.low_x) {
    canvas.text(ends, low, Ink::kFaintText, Qt::AlignLeft | Qt::AlignVCenter, false);
  }
  if (bounds.high_x > bounds.low_x) {
    canvas.text(ends, high, Ink::kFaintText, Qt::AlignRight | Qt::AlignVCenter, false);
  }
}

}  // namespace

std::vector<QRectF> label_places(const std::vector<PlotMark>& marks,
                                 const QFont& font,
                                 const QRectF& room) {
  constexpr double kHeight = 16, kHalf = PlotMark::kHalf;
  QFont bold = font;
  bold.setBold(true);
  std::vector<QRectF> out;
  for (const PlotMark& mark : marks) {
    const QSizeF size(QFontMetricsF(bold).horizontalAdvance(mark.name) + 2, kHeight);
    const QPointF offsets[] = {{kHalf, -kHeight / 2},
                               {-kHalf - size.width(), -kHeight / 2},
                               {-size.width() / 2, -kHalf - kHeight},
                               {-size.width() / 2, kHalf},
                               {-kHalf, -kHalf - kHeight},
                               {-kHalf, kHalf},
                               {kHalf - size.width(), -kHalf - kHeight},
                               {kHalf - size.width(), kHalf}};
    // How many names and marks the label would cover.
    const auto covered = [&](const QRectF& tried) {
      if (!room.contains(tried)) {
        return marks.size() + out.size();  // worse than to cover something
      }
      const auto names = std::count_if(
          out.begin(), out.end(), [&](const QRectF& other) { return other.intersects(tried); });
      const auto covers = std::count_if(marks.begin(), marks.end(), [&](const PlotMark& other) {
        const QRectF square(other.at.x() - kHalf, other.at.y() - kHalf, 2 * kHalf, 2 * kHalf);
        return &other != &mark && square.intersects(tried);
      });
      return static_cast<size_t>(names + covers);
    };
    QRectF best(mark.at + offsets[0], size);
    for (const QPointF& offset : offsets) {
      const QRectF tried(mark.at + offset, size);
      best = covered(tried) < covered(best) ? tried : best;
    }
    out.push_back(best);
  }
  return out;
}

QRectF ParetoPlot::area() const {
  return QRectF(rect()).adjusted(10, 24, -14, -24);
}

std::optional<ParetoPlot::Dot> ParetoPlot::dotAt(QPointF position) const {
  const std::vector<Dot> all = dots();
  const Bounds bounds = bounds_of(all, session_);
  std::optional<Dot> best;
  double nearest = kApart;
  for (const Dot& dot : all) {
    const double away = QPointF(bounds.place(dot.step, dot.peak, dot.has_step, area()) - position)
                            .manhattanLength();
    if (away <= nearest) {
      best = dot;
      nearest = away;
    }
  }
  return best;
}

void ParetoPlot::mousePressEvent(QMouseEvent* event) {
  const std::optional<Dot> dot = dotAt(event->position());
  if (dot && dot->found) {
    proposals_.take(dot->index);
  } else if (dot) {
    session_.edit(tr("back to v%1").arg(dot->index), session_.versions()[dot->index].state);
  }
}

bool ParetoPlot::event(QEvent* event) {
  if (event->type() == QEvent::ToolTip) {
    const auto* help = static_cast<QHelpEvent*>(event);
    const std::optional<Dot> dot = dotAt(help->pos());
    const QString name = !dot         ? QString()
                         : dot->found ? proposals_.list()[dot->index].title
                                      : session_.versions()[dot->index].title;
    QToolTip::showText(
        help->globalPos(),
        !dot ? QString()
        : !dot->has_step
            ? tr("%1\n%2").arg(name, unfitText(session_.versions()[dot->index].prediction))
            : tr("%1\n%2, %3").arg(name, durationText(dot->step), bytesText(dot->peak)),
        this);
    return true;
  }
  return QWidget::event(event);
}

void ParetoPlot::paintEvent(QPaintEvent* /*event*/) {
  QPainter painter(this);
  painter.setFont(font());
  PainterCanvas canvas(painter, *theme_);
  const QRectF area = this->area();
  canvas.fill(rect(), Ink::kBackground, 1);
  canvas.text({6, 2, width() - 12.0, 18}, tr("↑ peak → step"), Ink::kFaintText,
              Qt::AlignLeft | Qt::AlignVCenter, false);
  const std::vector<Dot> all = dots();
  if (all.empty()) {
    return;
  }
  const std::vector<PlanVersion>& versions = session_.versions();
  const std::vector<size_t> front = pareto(versions);
  const Bounds bounds = bounds_of(all, session_);
  canvas.line(area.bottomLeft(), area.bottomRight(), Ink::kGrid, false);
  canvas.line(area.bottomLeft(), area.topLeft(), Ink::kGrid, false);
  const PlanVersion* now = session_.current();
  if (const Bytes limit = now == nullptr ? 0 : now->prediction.available;
      limit > 0 && static_cast<double>(limit) <= bounds.high_y) {
    const double y = bounds.yOf(static_cast<double>(limit), area);
    canvas.line({area.left(), y}, {area.right(), y}, Ink::kWarning, true);
  }
  for (const Dot& dot : all) {
    if (dot.found) {
      const QPointF p = bounds.place(dot.step, dot.peak, dot.has_step, area);
      canvas.frame({p.x() - 4, p.y() - 4, 8, 8}, Ink::kAccent, 1);
    }
  }
  for (size_t i = 1; i < front.size(); ++i) {
    canvas.line(bounds.place(versions[front[i - 1]], area), bounds.place(versions[front[i]], area),
                Ink::kAccent, true);
  }
  const std::vector<PlotMark> marks = draw_marks(canvas, session_, bounds, area);
  const std::vector<QRectF> places =
      label_places(marks, font(), {0, 19, width() - 1.0, height() - 40.0});
  for (size_t i = 0; i < marks.size(); ++i) {
    canvas.text(places[i], marks[i].name, Ink::kText, Qt::AlignLeft | Qt::AlignVCenter,
                marks[i].chosen);
  }
  draw_ends(canvas, bounds, font(), {4, area.bottom() + 3, width() - 8.0, 18});
}

}  // namespace shardlens::gui
