#include "gui/view/timeline/timeline_view.h"

#include <algorithm>

#include <QElapsedTimer>
#include <QPainter>
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

}  // namespace shardlens::gui
