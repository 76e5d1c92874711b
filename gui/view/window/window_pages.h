#pragma once

#include <QMainWindow>
#include <QSettings>

#include "gui/model/base/action_registry.h"
#include "gui/model/run/selection_context.h"
#include "gui/view/panels/panels.h"
#include "gui/view/widgets/theme.h"

class QStackedWidget;
class QToolBar;

namespace shardlens::gui {

class HeadlineStrip;
class NoticeBar;
class PreviewPage;
class StartPage;
class TimelineView;

// The pages of the window: the start page, the workspace (headline, notices, timeline and docks) of
// an open run, and the picture of a part of a run that is being read.
class WindowPages {
 public:
  // `settings` keeps the layout.
  WindowPages(QMainWindow& window, QSettings& settings, SelectionContext& context);
  // Adds the start page. Required before anything is shown; the commands must exist.
  void complete(ActionRegistry& actions, Panels& panels);

  [[nodiscard]] StartPage& start() { return *start_; }
  [[nodiscard]] PreviewPage& preview() { return *preview_; }
  [[nodiscard]] NoticeBar& notice() { return *notice_; }
  [[nodiscard]] HeadlineStrip& headline() { return *strip_; }
  [[nodiscard]] TimelineView& timeline() { return *timeline_; }

  void showStart();
  void showWorkspace();
  void toggle();  // from the start page to the workspace and back
  // Shows a part of the run that is being read, without the panels and the status of a run that is
  // open.
  void showPreview(const RunPointer& part, const QString& title);
  void endPreview();  // the panels are as before
  void showRun(const RunPointer& run, const QString& title);
  void hideWorkspace();  // with its docks, as no run is open
  void setTitle(const QString& title);
  void setTheme(const Theme& theme);
  void saveLayout();

 private:
  QMainWindow& window_;
  QSettings& settings_;
  SelectionContext& context_;
  Panels* panels_ = nullptr;
  QStackedWidget* pages_;
  StartPage* start_ = nullptr;
  PreviewPage* preview_;
  QByteArray before_;     // the layout before the preview; otherwise empty
  QString title_before_;  // of the window
  QWidget* workspace_;
  NoticeBar* notice_;
  HeadlineStrip* strip_;
  TimelineView* timeline_;
  QToolBar* bar_;  // with the headline
};

}  // namespace shardlens::gui
