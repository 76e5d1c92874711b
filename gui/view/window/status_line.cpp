#include "gui/view/window/status_line.h"

#include <QStatusBar>

#include "gui/model/base/time_axis.h"
#include "gui/model/run/run_notes.h"

namespace shardlens::gui {

StatusLine::StatusLine(QMainWindow& window, SelectionContext& context, TimelineView& timeline)
    : window_(window), context_(context), timeline_(timeline) {
  range_->setContentsMargins(6, 0, 0, 0);
  range_->setMinimumWidth(260);
  window_.statusBar()->addWidget(range_);
  hover_->setAccessibleName(tr("Under the pointer"));
  window_.statusBar()->addWidget(hover_, 1);
  events_->setContentsMargins(0, 0, 6, 0);
  window_.statusBar()->addPermanentWidget(events_);
  window_.statusBar()->setSizeGripEnabled(false);
  connect(&timeline_, &TimelineView::hovered, hover_, &QLabel::setText);
  connect(&timeline_, &TimelineView::viewChanged, this, &StatusLine::update);
  connect(&context_, &SelectionContext::changed, this, &StatusLine::update);
}

void StatusLine::showProgress(int percent, const QString& what) {
  window_.statusBar()->showMessage(percent < 0 ? what : tr("%1, %2 %").arg(what).arg(percent));
}

void StatusLine::endProgress() {
  window_.statusBar()->clearMessage();
}

void StatusLine::update() {
  if (context_.run() == nullptr) {
    range_->clear();
    events_->clear();
    return;
  }
  const TimeAxis& axis = timeline_.scene().axis;
  const double resolution = axis.nanosecondsPerPixel();
  const auto range = context_.current().range.value_or(axis.view());
  range_->setText(tr("%1%2 – %3,  Δ %4")
                      .arg(context_.current().range ? tr("range ") : tr("view "),
                           timeText(range.start, resolution), timeText(range.end, resolution),
                           durationText(range.length())));
  events_->setText((is_simulated(*context_.run()) ? tr("simulated, ") : QString()) +
                   countText(context_.run()->event_count, tr("event"), tr("events")));
}

}  // namespace shardlens::gui
