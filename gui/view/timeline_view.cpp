#include "gui/view/timeline_view.h"

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

#include "gui/model/run_notes.h"
#include "gui/view/painter_canvas.h"

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

void TimelineView::fitAll() {
  if (scene_.axis.fitAll()) {
    moved();
  }
}

void TimelineView::selectNeighbour(int way) {
  const Selection& chosen = context_.current();
  if (!chosen.item) {
    return;
  }
  const auto where = scene_.place(*chosen.item);
  if (!where) {
    return;
  }
  const Lane& lane = context_.run()->ranks[chosen.item->rank]->lanes[where->lane];
  const auto& items = lane.rows[where->row].items();
  const auto next = static_cast<std::ptrdiff_t>(where->index) + way;
  if (next >= 0 && next < static_cast<std::ptrdiff_t>(items.size())) {
    context_.selectItem({chosen.item->rank, lane.source, items[static_cast<size_t>(next)].ref});
    const auto shown = context_.itemInterval();
    if (shown && (shown->start < scene_.axis.view().start || shown->end > scene_.axis.view().end)) {
      const Nanoseconds half = scene_.axis.view().length() / 2;
      scene_.axis.setView({shown->start - half, shown->start + half});
      moved();
    }
  }
}

void TimelineView::selectExposed(int way) {
  const RankData* rank = context_.rank();
  if (rank == nullptr) {
    return;
  }
  const Selection& chosen = context_.current();
  const bool has = chosen.item && chosen.item->source == Lane::Source::kCollectives;
  const auto count = static_cast<std::ptrdiff_t>(rank->timeline.collectives.size());
  for (std::ptrdiff_t i = has       ? static_cast<std::ptrdiff_t>(chosen.item->ref) + way
                          : way > 0 ? 0
                                    : count - 1;
       i >= 0 && i < count; i += way) {
    if (!rank->exposed(static_cast<uint32_t>(i)).empty()) {
      context_.selectItem({chosen.rank, Lane::Source::kCollectives, static_cast<uint32_t>(i)});
      showInterval(*context_.itemInterval());
      return;
    }
  }
}

// Forward: from a collective to the first compute that began when it was needed. Back: from an
// event to the collective that was needed last before it.
void TimelineView::followArrow(int way) {
  const RankData* rank = context_.rank();
  const Selection& chosen = context_.current();
  if (rank == nullptr || !chosen.item) {
    return;
  }
  if (way > 0 && chosen.item->source == Lane::Source::kCollectives) {
    const auto needed = rank->timeline.collectives[chosen.item->ref].needed_at;
    for (const Lane& lane : rank->lanes) {
      if (!needed || lane.source != Lane::Source::kEvents || lane.kind != Kind::kCompute) {
        continue;
      }
      const size_t next = lane.rows.front().first_ending_after(*needed);
      if (next < lane.rows.front().items().size()) {
        context_.selectItem({chosen.item->rank, lane.source, lane.rows.front().items()[next].ref});
        return;
      }
    }
  } else if (way < 0 && chosen.item->source == Lane::Source::kEvents) {
    const Nanoseconds at = interval_of(*rank, *chosen.item).end;
    std::optional<uint32_t> best;
    for (uint32_t i = 0; i < rank->timeline.collectives.size(); ++i) {
      const auto needed = rank->timeline.collectives[i].needed_at;
      if (needed && *needed <= at &&
          (!best || *needed >= *rank->timeline.collectives[*best].needed_at)) {
        best = i;
      }
    }
    if (best) {
      context_.selectItem({chosen.item->rank, Lane::Source::kCollectives, *best});
    }
  }
}

void TimelineView::toggleBookmark(const QString& note) {
  const auto item = context_.itemInterval();
  const Nanoseconds time = context_.current().range ? context_.current().range->start
                           : item                   ? item->start
                           : scene_.cursor          ? *scene_.cursor
                                                    : scene_.axis.toTime(scene_.axis.width() / 2.0);
  auto& marks = scene_.bookmarks;
  const auto near = std::find_if(marks.begin(), marks.end(), [&](const Bookmark& m) {
    return std::abs(scene_.axis.toPixel(m.time) - scene_.axis.toPixel(time)) < kSnapPixels;
  });
  if (near != marks.end()) {
    marks.erase(near);
  } else {
    marks.push_back(
        {time, note.isEmpty() ? timeText(time, scene_.axis.nanosecondsPerPixel()) : note});
    std::sort(marks.begin(), marks.end(),
              [](const Bookmark& a, const Bookmark& b) { return a.time < b.time; });
  }
  viewport()->update();
  emit bookmarksChanged();
}

void TimelineView::jumpToBookmark(int way) {
  const analysis::Interval view = scene_.axis.view();
  const Nanoseconds middle = view.start + view.length() / 2;
  const Bookmark* best = nullptr;
  for (const Bookmark& mark : scene_.bookmarks) {
    const bool beyond = way > 0 ? mark.time > middle + 1 : mark.time < middle - 1;
    if (beyond && (best == nullptr || (way > 0) == (mark.time < best->time))) {
      best = &mark;
    }
  }
  if (best != nullptr) {
    scene_.axis.setView(
        {best->time - view.length() / 2, best->time - view.length() / 2 + view.length()});
    moved();
  }
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
  if (hit.band != nullptr && hit.band->kind == TimelineLayout::Band::Kind::kRank &&
      event->position().x() < TimelineScene::kGutter) {
    scene_.toggle(hit.band->rank);
    updateScrollBars();
    context_.selectRank(hit.band->rank);
    viewport()->update();
  } else if (hit.item && !hit.ghost) {
    context_.selectItem(*hit.item);
  } else if (hit.band != nullptr && event->position().y() > TimelineScene::kHeader) {
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
  if (event->type() == QEvent::Leave) {
    scene_.cursor.reset();
    viewport()->update();
  }
  return QAbstractScrollArea::viewportEvent(event);
}

}  // namespace shardlens::gui
