#include "gui/view/timeline/timeline_view.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <QElapsedTimer>
#include <QPainter>
#include <QScopedValueRollback>
#include <QScrollBar>

#include "gui/view/widgets/painter_canvas.h"

namespace shardlens::gui {

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
  walk_ = {};
  unfolded_.reset();
  drag_ = Drag::kNone;
  hovered_lane_.reset();
  scene_.setSize(viewport()->width(), viewport()->height());
  updateScrollBars();
  moved();
}

void TimelineView::selectionChanged() {
  const Selection before = scene_.selection();
  const Selection& now = context_.current();
  scene_.setSelection(now);
  const auto item = context_.itemInterval();
  if (!clicking_ && context_.run() != nullptr &&
      (before.rank != now.rank || before.item != now.item || before.unit != now.unit)) {
    revealLane();
    if (item && (item->end <= scene_.axis.view().start || item->start >= scene_.axis.view().end)) {
      reveal(*item);
    }
  }
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
  const TimelineLayout& layout = scene_.layout();
  const int inside = viewport()->height() - static_cast<int>(TimelineScene::kHeader) -
                     static_cast<int>(layout.pinned);
  const int hidden = std::max(0, static_cast<int>(layout.height - layout.pinned) - inside + 8);
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

void TimelineView::setView(const analysis::Interval& shown) {
  if (scene_.axis.setView(shown)) {
    moved();
  }
}

void TimelineView::fitSelection() {
  const Selection& chosen = context_.current();
  const RankData* rank = context_.rank();
  if (chosen.item || chosen.unit) {
    revealLane();
  }
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
  if (where) {
    revealLane();
    showInterval(*where);
  } else {
    fitSelection();
  }
}

void TimelineView::fitGhost() {
  if (const auto shown = scene_.ghostInterval()) {
    showInterval(*shown);
    scrollTo(*scene_.layout().extentOfGhost());
  }
}

void TimelineView::fitAll() {
  if (scene_.axis.fitAll()) {
    moved();
  }
}

void TimelineView::unfold(size_t rank) {
  if (unfolded_ && *unfolded_ != rank && !scene_.collapsed().contains(*unfolded_)) {
    scene_.toggle(*std::exchange(unfolded_, std::nullopt));
  }
  if (scene_.collapsed().contains(rank)) {
    scene_.toggle(rank);
    unfolded_ = rank;
  }
  updateScrollBars();
}

void TimelineView::scrollTo(const TimelineLayout::Extent& shown) {
  constexpr double kMargin = 4;
  const double pinned = scene_.layout().pinned;
  const double room = viewport()->height() - TimelineScene::kHeader - pinned;
  const double top = shown.top - pinned - kMargin, bottom = shown.bottom - pinned + kMargin;
  const double seen = std::min(bottom, scene_.scroll + room) - std::max(top, scene_.scroll);
  if (bottom - top > room ? seen < room / 2 : top < scene_.scroll) {
    verticalScrollBar()->setValue(static_cast<int>(top));
  } else if (bottom - top <= room && bottom > scene_.scroll + room) {
    verticalScrollBar()->setValue(static_cast<int>(std::ceil(bottom - room)));
  }
}

void TimelineView::revealLane() {
  const Selection& chosen = context_.current();
  unfold(chosen.rank);
  const TimelineLayout& layout = scene_.layout();
  TimelineLayout::Extent shown = layout.extentOf(chosen.rank);
  const auto place = chosen.item ? scene_.place(*chosen.item) : std::nullopt;
  if (place) {
    // Items on rows that are not drawn are below the last one that is.
    const TimelineLayout::Band* band = layout.find(chosen.rank, place->lane, place->row);
    for (size_t row = place->row; band == nullptr && row > 0; --row) {
      band = layout.find(chosen.rank, place->lane, row - 1);
    }
    if (band != nullptr) {
      shown = {band->top, band->top + band->height};
    }
  }
  scrollTo(shown);
}

void TimelineView::toggleRank(size_t rank) {
  scene_.toggle(rank);
  if (unfolded_ == rank) {
    unfolded_.reset();
  }
  updateScrollBars();
  const QScopedValueRollback guard(clicking_, true);
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
  unfolded_.reset();
  updateScrollBars();
  viewport()->update();
}

}  // namespace shardlens::gui
