#include <algorithm>
#include <cmath>
#include <utility>

#include <QHelpEvent>
#include <QMouseEvent>
#include <QScopedValueRollback>
#include <QToolTip>
#include <QWheelEvent>

#include "gui/model/run/run_notes.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/widgets/text_lines.h"
#include "gui/view/widgets/time_wheel.h"

namespace shardlens::gui {
namespace {

constexpr double kSnapPixels = 6;

}  // namespace

void TimelineView::wheelEvent(QWheelEvent* event) {
  constexpr double kScrolled = 48;  // pixels per notch
  const TimeAxis::Wheel wheel = turn_of(*event);
  const QPointF at = event->position();
  const bool over_names = at.x() < TimelineScene::kGutter || event->modifiers() & Qt::AltModifier;
  if (over_names && !wheel.pans()) {
    scrollBy(static_cast<int>(-wheel.up * kScrolled));
  } else if (scene_.axis.turn(wheel, at.x() - TimelineScene::kGutter)) {
    moved();
  }
  event->accept();
}

void TimelineView::moveMinimapTo(double x) {
  const Nanoseconds length = scene_.axis.view().length();
  const analysis::Interval& bounds = scene_.axis.bounds();
  const double part = (x - TimelineScene::kGutter) / scene_.axis.width();
  const Nanoseconds middle =
      bounds.start + static_cast<Nanoseconds>(part * static_cast<double>(bounds.length()));
  if (scene_.axis.setView({middle - length / 2, middle - length / 2 + length})) {
    moved();
  }
}

void TimelineView::mousePressEvent(QMouseEvent* event) {
  pressed_ = last_ = event->position();
  const bool in_lanes = pressed_.x() >= TimelineScene::kGutter;
  if (event->button() == Qt::MiddleButton ||
      (event->button() == Qt::LeftButton && event->modifiers() & Qt::ShiftModifier)) {
    drag_ = Drag::kPan;
    viewport()->setCursor(Qt::ClosedHandCursor);
  } else if (event->button() == Qt::LeftButton && in_lanes &&
             pressed_.y() < TimelineScene::kMinimap) {
    drag_ = Drag::kMinimap;
    moveMinimapTo(pressed_.x());
  } else if (event->button() == Qt::LeftButton) {
    drag_ = Drag::kPress;
    const bool free = event->modifiers() & Qt::AltModifier;
    anchor_ = scene_.snap(pressed_.x(), pressed_.y(), free ? 0 : kSnapPixels);
  }
}

QString TimelineView::description(const TimelineScene::Hit& hit) const {
  if (!hit.item) {
    return {};
  }
  if (!hit.ghost) {
    return description_of(*context_.run(), *hit.item);
  }
  const Ghost& ghost = scene_.ghost();
  Selection::Item item = *hit.item;
  item.rank = ghost.own_rank;
  return (is_simulated(*ghost.run) ? QString() : ghost.title + QStringLiteral(", ")) +
         description_of(*ghost.run, item);
}

bool TimelineView::isRankName(const QPointF& at) const {
  const TimelineScene::Hit hit = scene_.hit(at.x(), at.y());
  return at.x() < TimelineScene::kGutter && hit.band &&
         hit.band->kind == TimelineLayout::Band::Kind::kRank;
}

void TimelineView::hover(const QPointF& at) {
  scene_.cursor = at.x() >= TimelineScene::kGutter
                      ? std::optional(scene_.axis.toTime(at.x() - TimelineScene::kGutter))
                      : std::nullopt;
  QString text;
  bool clickable = false;
  std::optional<LaneAt> lane;
  if (context_.run() != nullptr) {
    const TimelineScene::Hit hit = scene_.hit(at.x(), at.y());
    text = description(hit);
    if (hit.band && !hit.band->name.isEmpty()) {
      lane = LaneAt{hit.band->rank, hit.band->name};
    }
    if (!hit.item && hit.merged > 1) {
      text = tr("%1 events here, busy %2 %")
                 .arg(hit.merged)
                 .arg(100 * std::min(1.0, hit.busy), 0, 'f', 0);
    }
    if (text.isEmpty() && hit.band && scene_.cursor) {
      text = scene_.textAtCursor(*hit.band);
    }
    clickable = isRankName(at);
    if (const auto step = scene_.stepAt(at.x(), at.y())) {
      const analysis::StepAnalysis& of = context_.rank()->figures.steps[*step];
      text =
          tr("step %1, %2; a click selects it").arg(of.step).arg(durationText(of.window.length()));
      clickable = true;
    }
  }
  setHoveredLane(lane);
  if (drag_ == Drag::kNone) {
    viewport()->setCursor(clickable ? Qt::PointingHandCursor : Qt::ArrowCursor);
  }
  emit hovered(text);
  emit cursorMoved(scene_.cursor);
  viewport()->update();
}

void TimelineView::mouseMoveEvent(QMouseEvent* event) {
  const QPointF at = event->position();
  switch (drag_) {
    case Drag::kPan:
      scene_.axis.pan(last_.x() - at.x());
      scrollBy(static_cast<int>(last_.y() - at.y()));
      moved();
      break;
    case Drag::kMinimap:
      moveMinimapTo(at.x());
      break;
    case Drag::kPress:
      if (std::abs(at.x() - pressed_.x()) < 4 || pressed_.x() < TimelineScene::kGutter) {
        break;
      }
      drag_ = Drag::kMeasure;
      [[fallthrough]];
    case Drag::kMeasure: {
      const bool free = event->modifiers() & Qt::AltModifier;
      const Nanoseconds other = scene_.snap(at.x(), at.y(), free ? 0 : kSnapPixels);
      scene_.dragged = analysis::Interval{std::min(anchor_, other), std::max(anchor_, other)};
      emit dragging(scene_.dragged);
      break;
    }
    case Drag::kNone:
      break;
  }
  last_ = at;
  hover(at);
}

void TimelineView::mouseReleaseEvent(QMouseEvent* event) {
  const Drag drag = std::exchange(drag_, Drag::kNone);
  viewport()->unsetCursor();
  if (drag == Drag::kMeasure && scene_.dragged) {
    const analysis::Interval range = *std::exchange(scene_.dragged, std::nullopt);
    emit dragging(std::nullopt);
    context_.selectRange(range.length() > 0 ? std::optional(range) : std::nullopt);
    return;
  }
  if (drag == Drag::kPress && context_.run() != nullptr) {
    click(event->position());
  }
}

void TimelineView::click(const QPointF& at) {
  const QScopedValueRollback guard(clicking_, true);
  const TimelineScene::Hit hit = scene_.hit(at.x(), at.y());
  if (const auto step = scene_.stepAt(at.x(), at.y())) {
    context_.selectStep(context_.current().step == step ? std::nullopt : step);
  } else if (isRankName(at)) {
    toggleRank(hit.band->rank);
  } else if (hit.item && hit.ghost) {
    const Ghost& ghost = scene_.ghost();
    context_.selectUnit(unit_of(ghost.data(), *hit.item));
  } else if (hit.item) {
    context_.selectItem(*hit.item);
  } else if (hit.band) {
    if (hit.band->rank != context_.current().rank) {
      context_.selectRank(hit.band->rank);
    } else {
      context_.clear();
    }
  }
}

// The interval of an item of the other run, in display time.
analysis::Interval TimelineView::ghostInterval(const Selection::Item& item) const {
  const Ghost& ghost = scene_.ghost();
  const analysis::Interval shown = ghost.run->shown(ghost.data(), interval_of(ghost.data(), item));
  return {shown.start + ghost.start, shown.end + ghost.start};
}

// Follows a click, which has selected what is under the pointer.
void TimelineView::mouseDoubleClickEvent(QMouseEvent* event) {
  if (context_.run() == nullptr || event->button() != Qt::LeftButton) {
    return;
  }
  const QPointF at = event->position();
  const TimelineScene::Hit hit = scene_.hit(at.x(), at.y());
  if (const auto step = scene_.stepAt(at.x(), at.y())) {
    context_.selectStep(step);
    showInterval(
        context_.run()->shown(*context_.rank(), context_.rank()->figures.steps[*step].window));
  } else if (isRankName(at)) {
    mousePressEvent(event);  // two quick clicks fold and unfold
  } else if (hit.item) {
    hit.ghost ? showInterval(ghostInterval(*hit.item)) : fitSelection();
  }
}

// The menu is for the item under the pointer, which is selected first. If the menu was opened with
// the keyboard, it is for the selected item.
void TimelineView::contextMenuEvent(QContextMenuEvent* event) {
  event->accept();
  if (context_.run() == nullptr) {
    return;
  }
  MenuTarget target;
  const bool mouse = event->reason() == QContextMenuEvent::Mouse;
  if (mouse) {
    const TimelineScene::Hit hit = scene_.hit(event->pos().x(), event->pos().y());
    if (event->pos().x() >= TimelineScene::kGutter) {
      target.time = scene_.axis.toTime(event->pos().x() - TimelineScene::kGutter);
    } else if (hit.band && hit.band->kind == TimelineLayout::Band::Kind::kRank) {
      target.rank = hit.band->rank;
    } else if (hit.band && !hit.band->name.isEmpty()) {
      target.lane = hit.band->name;
      target.lane_rank = hit.band->rank;
    }
    if (hit.item && !hit.ghost) {
      const QScopedValueRollback guard(clicking_, true);
      context_.selectItem(*hit.item);
      target.item = hit.item;
    }
  } else if (context_.current().item) {
    target.item = context_.current().item;
    target.time = context_.itemInterval()->start;
  }
  if (target.item) {
    target.unit = unit_of(*context_.run()->ranks[target.item->rank], *target.item);
    target.text = description_of(*context_.run(), *target.item);
  }
  emit menuRequested(
      target, mouse ? event->globalPos() : viewport()->mapToGlobal(viewport()->rect().center()));
}

bool TimelineView::viewportEvent(QEvent* event) {
  if (event->type() == QEvent::ToolTip && context_.run() != nullptr) {
    const auto* help = static_cast<QHelpEvent*>(event);
    const TimelineScene::Hit hit = scene_.hit(help->pos().x(), help->pos().y());
    QToolTip::showText(help->globalPos(), in_lines(description(hit)), viewport());
    return true;
  }
  if (event->type() == QEvent::Enter) {  // also when a dialog closes, without a mouse move
    hover(static_cast<QEnterEvent*>(event)->position());
  }
  if (event->type() == QEvent::Leave) {
    scene_.cursor.reset();
    setHoveredLane(std::nullopt);
    emit hovered({});
    emit cursorMoved(std::nullopt);
    viewport()->update();
  }
  return QAbstractScrollArea::viewportEvent(event);
}

}  // namespace shardlens::gui
