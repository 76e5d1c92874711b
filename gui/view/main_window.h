#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include <QMainWindow>
#include <QSettings>

#include "gui/model/action_registry.h"
#include "gui/model/plan_session.h"
#include "gui/model/run_loader.h"
#include "gui/model/selection_context.h"
#include "gui/view/command_palette.h"
#include "gui/view/panels.h"
#include "gui/view/theme.h"

class QLabel;
class QStackedWidget;
class QToolBar;

namespace shardlens::gui {

class HeadlineStrip;
class StartPage;
class TimelineView;

// The window: start page until a run is open, then headline, timeline and the docks around it.
//
// Threads  the GUI thread; runs are read on another (RunLoader).
class MainWindow : public QMainWindow {
  Q_OBJECT
 public:
  // `settings` keeps layout, theme and recent files; it must outlive the window.
  explicit MainWindow(QSettings& settings, QWidget* parent = nullptr);
  ~MainWindow() override;

  void open(const QStringList& paths);
  // A model's config.json, fully sharded over eight ranks and simulated, in place of a run.
  void openModel(const QString& config);
  // A plan file as an edit of the session's plan. False, and lastError(), where it cannot be.
  bool applyPlan(const QString& path);
  void setDark(bool dark);
  [[nodiscard]] bool isDark() const { return dark_; }
  [[nodiscard]] ActionRegistry& actions() { return actions_; }
  [[nodiscard]] SelectionContext& context() { return context_; }
  [[nodiscard]] TimelineView& timeline() { return *timeline_; }
  [[nodiscard]] Panels& panels() { return *panels_; }
  [[nodiscard]] HeadlineStrip& headline() { return *strip_; }
  [[nodiscard]] RunLoader& loader() { return loader_; }
  [[nodiscard]] PlanSession& session() { return session_; }

  // A small capture that comes with the program; "" where it was not installed.
  [[nodiscard]] QString sampleRun() const;
  // PNG of the whole window, by the name's ending SVG of the timeline, or CSV of the panel that has
  // the focus. Errors: a message; false.
  bool exportTo(const QString& path);
  // What the last load or export had to say against it; "" if nothing.
  [[nodiscard]] QString lastError() const { return error_; }

 signals:
  // A load has ended, well or not.
  void settled();

 protected:
  void closeEvent(QCloseEvent* event) override;
  void dragEnterEvent(QDragEnterEvent* event) override;
  void dropEvent(QDropEvent* event) override;

 private:
  void addFileCommands();
  void addGoCommands();
  void addViewCommands();
  void addPlanCommands();
  void updateGhost();
  void keepBookmarks();
  void restoreBookmarks();
  void showRun(const RunPointer& run, const QString& title);
  void savePlan();
  void makeMenus();
  void makeStatusBar();
  void connectViews();
  void loaded(const RunPointer& run);
  void fail(const QString& message);
  void remember(const QStringList& paths);
  void showPalette();
  void chooseFiles(bool directory);
  void chooseModel();
  void chooseExport();
  [[nodiscard]] std::vector<PaletteEntry> found(const QString& text);

  QSettings& settings_;
  ActionRegistry actions_;
  SelectionContext context_;
  RunLoader loader_;
  PlanSession session_;
  bool ghosts_ = true;  // whether simulated lanes are shown
  QStringList opening_;
  QString error_;
  bool dark_ = false;
  QStackedWidget* pages_;
  StartPage* start_ = nullptr;
  QWidget* workspace_;
  HeadlineStrip* strip_;
  TimelineView* timeline_;
  QToolBar* bar_;
  Panels* panels_;
  QLabel* range_label_;
  QLabel* hover_label_;
  QLabel* frame_label_;
};

}  // namespace shardlens::gui
