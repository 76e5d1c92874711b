#pragma once

#include <QLabel>
#include <QMainWindow>

#include "gui/model/run/selection_context.h"
#include "gui/view/timeline/timeline_view.h"
#include "gui/view/widgets/elided_label.h"

namespace shardlens::gui {

// The window's status bar: the range in view or dragged, what is under the pointer, how many events
// the run has, and how far work in the background is.
class StatusLine : public QObject {
  Q_OBJECT
 public:
  StatusLine(QMainWindow& window, SelectionContext& context, TimelineView& timeline);
  // percent: -1: unknown.
  void showProgress(int percent, const QString& what);
  void endProgress();

 private:
  void update();
  QMainWindow& window_;
  SelectionContext& context_;
  TimelineView& timeline_;
  QLabel* range_ = new QLabel;
  ElidedLabel* hover_ = new ElidedLabel;
  QLabel* events_ = new QLabel;
};

}  // namespace shardlens::gui
