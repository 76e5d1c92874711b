#include "gui/view/timeline/timeline_view.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <QElapsedTimer>
#include <QHelpEvent>
#include <QMouseEvent>
#include <QPainter>
#include <QScrollBar>
#include <QToolTip>
#include <QWheelEvent>

#include "gui/model/run/run_notes.h"
#include "gui/view/widgets/painter_canvas.h"

namespace shardlens::gui {
namespace {

constexpr double kSnapPixels = 6;
constexpr double kWheelStep = 0.8, kFineWheelStep = 0.95;  // zoom per notch

}  // namespace

TimelineView::TimelineView(SelectionContext& context, QWidget* parent)
    : QAbstractScrollArea(parent), context_(context), theme_(&Theme::light()) {
  setFrameShape(QFrame::NoFrame);
  setFocusPolicy(Qt::StrongFocus);
  setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
  viewport()->setMouseTracking(true);
  viewport()->setAttribute(Qt::WA_OpaquePaintEvent);
  setAccessibleName(tr("Timeline"));
  setMinimumHeight(160);
  connect(&context_, &SelectionContext::runChanged, this, &TimelineView::runChanged);
  connect(&context_, &SelectionContext::changed, this, &TimelineView::selectionChanged);
}

void TimelineView::setTheme(const Theme& theme) {
  theme_ = &theme;
  viewport()->update();
}

void TimelineView::setGhost(const Ghost& ghost) {
  scene_.setGhost(ghost);
  updateScrollBars();
  viewport()->update();
}

void TimelineView::runChanged() {
  scene_.setRun(context_.run());
  drag_ = Drag::kNone;
  scene_.setSize(viewport()->width(), viewport()->height());
  updateScrollBars();
  moved();
}

void TimelineView::selectionChanged() {
  scene_.setSelection(context_.current());
  const auto item = context_.itemInterval();
  setAccessibleDescription(item && context_.current().item
                               ? description_of(*context_.run(), *context_.current().item)
                               : QString());
  viewport()->update();
}

void TimelineView::moved() {
  viewport()->update();
  emit viewChanged();
}

void TimelineView::updateScrollBars() {
  const int inside = viewport()->height() - static_cast<int>(TimelineScene::kHeader);
  const int hidden = std::max(0, static_cast<int>(scene_.layout().height) - inside + 8);
  verticalScrollBar()->setRange(0, hidden);
  verticalScrollBar()->setPageStep(std::max(1, inside));
  verticalScrollBar()->setSingleStep(24);
  scene_.scroll = verticalScrollBar()->value();
}

void TimelineView::scrollContentsBy(int /*dx*/, int /*dy*/) {
  scene_.scroll = verticalScrollBar()->value();
  viewport()->update();
}

void TimelineView::drawOn(QPainter& painter) {
  painter.setFont(font());
  PainterCanvas canvas(painter, *theme_);
  scene_.draw(canvas);
}

void TimelineView::paintEvent(QPaintEvent* /*event*/) {
  QElapsedTimer timer;
  timer.start();
  QPainter painter(viewport());
  drawOn(painter);
  last_frame_ = timer.nsecsElapsed();
}

void TimelineView::resizeEvent(QResizeEvent* /*event*/) {
  scene_.setSize(viewport()->width(), viewport()->height());
  updateScrollBars();
  moved();
}

void TimelineView::zoomBy(double factor) {
  const QPointF pointer = viewport()->mapFromGlobal(QCursor::pos());
  const bool inside =
      viewport()->rect().contains(pointer.toPoint()) && pointer.x() >= TimelineScene::kGutter;
  const double around = inside ? pointer.x() - TimelineScene::kGutter : scene_.axis.width() / 2.0;
  if (scene_.axis.zoom(factor, around)) {
    moved();
  }
}

void TimelineView::panBy(double part) {
  if (scene_.axis.pan(part * scene_.axis.width())) {
    moved();
  }
}

void TimelineView::scrollBy(int pixels) {
  verticalScrollBar()->setValue(verticalScrollBar()->value() + pixels);
}

void TimelineView::showInterval(const analysis::Interval& shown) {
  if (scene_.axis.fit(shown)) {
    moved();
  }
}

void TimelineView::fitSelection() {
  const Selection& chosen = context_.current();
  const RankData* rank = context_.rank();
  if (chosen.range) {
    showInterval(*chosen.range);
  } else if (const auto item = context_.itemInterval()) {
    showInterval(*item);
  } else if (rank != nullptr && chosen.step && *chosen.step < rank->figures.steps.size()) {
    showInterval(context_.run()->shown(*rank, rank->figures.steps[*chosen.step].window));
  } else {
    fitAll();
  }
}

void TimelineView::goToSelection() {
  const Selection& chosen = context_.current();
  const RankData* rank = context_.rank();
  std::optional<analysis::Interval> where = context_.itemInterval();
  if (!where && rank != nullptr && chosen.unit) {
    const size_t step = chosen.step.value_or(0);
    where = scene_.unitInterval(step < rank->figures.steps.size() ? rank->figures.steps[step].window
                                : rank->timeline.span.empty()
                                    ? analysis::Interval{}
                                    : analysis::Interval{rank->timeline.span.front().start,
                                                         rank->timeline.span.back().end});
  }
  where ? showInterval(*where) : fitSelection();
}

void TimelineView::fitAll() {
  if (scene_.axis.fitAll()) {
    moved();
  }
}

void TimelineView::toggleRank(size_t rank) {
  scene_.toggle(rank);
  updateScrollBars();
  context_.selectRank(rank);
  viewport()->update();
}

void TimelineView::setAllCollapsed(bool collapsed) {
  std::set<size_t> ranks;
  for (size_t i = 0; collapsed && context_.run() != nullptr && i < context_.run()->ranks.size();
       ++i) {
    ranks.insert(i);
  }
  scene_.setCollapsed(ranks);
  updateScrollBars();
  viewport()->update();
}

void TimelineView::wheelEvent(QWheelEvent* event) {
  const double notches = event->angleDelta().y() / 120.0;
  const double sideways = event->angleDelta().x() / 120.0;
  const QPointF at = event->position();
  if (event->modifiers() & Qt::ShiftModifier ||
      (sideways != 0 && std::abs(sideways) > std::abs(notches))) {
    panBy(-(sideways != 0 ? sideways : notches) * 0.1);
  } else if (at.x() < TimelineScene::kGutter || event->modifiers() & Qt::AltModifier) {
    scrollBy(static_cast<int>(-notches * 48));
  } else {
    const double step = event->modifiers() & Qt::ControlModifier ? kFineWheelStep : kWheelStep;
    if (scene_.axis.zoom(std::pow(step, notches), at.x() - TimelineScene::kGutter)) {
      moved();
    }
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

void TimelineView::hover(const QPointF& at) {
  scene_.cursor = at.x() >= TimelineScene::kGutter
                      ? std::optional(scene_.axis.toTime(at.x() - TimelineScene::kGutter))
                      : std::nullopt;
  QString text;
  if (context_.run() != nullptr) {
    const TimelineScene::Hit hit = scene_.hit(at.x(), at.y());
    if (hit.item) {
      Selection::Item item = *hit.item;
      const Ghost& ghost = scene_.ghost();
      item.rank = hit.ghost ? ghost.own_rank : item.rank;
      const bool says_so = hit.ghost && is_simulated(*ghost.run);
      text = (hit.ghost && !says_so ? ghost.title + QStringLiteral(", ") : QString()) +
             description_of(hit.ghost ? *ghost.run : *context_.run(), item);
    } else if (hit.merged > 1) {
      text = tr("%1 events here, busy %2 %")
                 .arg(hit.merged)
                 .arg(100 * std::min(1.0, hit.busy), 0, 'f', 0);
    }
  }
  emit hovered(text);
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
  if (drag != Drag::kPress || context_.run() == nullptr) {
    return;
  }
  const TimelineScene::Hit hit = scene_.hit(event->position().x(), event->position().y());
  if (hit.band && hit.band->kind == TimelineLayout::Band::Kind::kRank &&
      event->position().x() < TimelineScene::kGutter) {
    toggleRank(hit.band->rank);
  } else if (hit.item && !hit.ghost) {
    context_.selectItem(*hit.item);
  } else if (hit.band && event->position().y() > TimelineScene::kHeader) {
    if (hit.band->rank != context_.current().rank) {
      context_.selectRank(hit.band->rank);
    } else {
      context_.clear();
    }
  }
}

void TimelineView::mouseDoubleClickEvent(QMouseEvent* event) {
  if (context_.run() != nullptr && scene_.hit(event->position().x(), event->position().y()).item) {
    fitSelection();
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
    }
    if (hit.item && !hit.ghost) {
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
    if (hit.item && !hit.ghost) {
      QToolTip::showText(help->globalPos(), description_of(*context_.run(), *hit.item), viewport());
    } else {
      QToolTip::hideText();
    }
    return true;
  }
  if (event->type() == QEvent::Enter) {  // also when a dialog closes, without a mouse move
    hover(static_cast<QEnterEvent*>(event)->position());
  }
  if (event->type() == QEvent::Leave) {
    scene_.cursor.reset();
    viewport()->update();
  }
  return QAbstractScrollArea::viewportEvent(event);
}

}  // namespace shardlens::gui
