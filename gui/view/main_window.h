#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include <QMainWindow>
#include <QSettings>

#include "gui/model/action_registry.h"
#include "gui/model/compare_session.h"
#include "gui/model/plan_session.h"
#include "gui/model/project.h"
#include "gui/model/run_loader.h"
#include "gui/model/selection_context.h"
#include "gui/view/command_palette.h"
#include "gui/view/panels.h"
#include "gui/view/theme.h"
#include "gui/view/timeline_layout.h"

class QLabel;
class QMenu;
class QStackedWidget;
class QToolBar;

namespace shardlens::gui {

class HeadlineStrip;
class NoticeBar;
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

  // Traces, capture directories, or one project; asks first where a project would lose changes.
  void open(const QStringList& paths);
  // A model's config.json, fully sharded over the ranks of a spec and simulated, in place of a run.
  // `hardware`: a spec's name or file; "": asks for it (unattended, that is lastError()).
  void openModel(const QString& config, const QString& hardware);
  // Figures are not kept: plans are simulated again when it is opened. False, and lastError(),
  // where it cannot be written.
  bool saveProject(const QString& path);
  [[nodiscard]] Project project() const;
  // A plan file as an edit of the session's plan. False, and lastError(), where it cannot be.
  bool applyPlan(const QString& path);
  // Another run, B, beside the one that is open; settled() tells when it is there, or lastError().
  void compareWith(const QStringList& paths);
  void setDark(bool dark);
  [[nodiscard]] bool isDark() const { return dark_; }
  [[nodiscard]] ActionRegistry& actions() { return actions_; }
  [[nodiscard]] SelectionContext& context() { return context_; }
  [[nodiscard]] TimelineView& timeline() { return *timeline_; }
  [[nodiscard]] Panels& panels() { return *panels_; }
  [[nodiscard]] HeadlineStrip& headline() { return *strip_; }
  [[nodiscard]] NoticeBar& notice() { return *notice_; }
  [[nodiscard]] RunLoader& loader() { return loader_; }
  [[nodiscard]] PlanSession& session() { return session_; }
  [[nodiscard]] CompareSession& compare() { return compare_; }

  // A small capture that comes with the program; "" where it was not installed.
  [[nodiscard]] QString sampleRun() const;
  // By the name's ending: PNG or SVG of `view`, or CSV of its table. nullptr: PNG of the whole
  // window, SVG of the timeline, CSV of the modules. Errors: lastError(); false.
  bool exportTo(const QString& path, QWidget* view = nullptr);
  // The panel that has the keyboard's focus, else the timeline.
  [[nodiscard]] QWidget* focusedView() const;
  // Nobody looks: nothing is asked, and messages are lastError() alone.
  void setUnattended() { unattended_ = true; }
  // What the last load or export had to say against it; "" if nothing.
  [[nodiscard]] QString lastError() const { return error_; }

 signals:
  // A load has ended, well or not.
  void settled();

 protected:
  void closeEvent(QCloseEvent* event) override;
  void dragEnterEvent(QDragEnterEvent* event) override;
  void dropEvent(QDropEvent* event) override;
  bool focusNextPrevChild(bool next) override;
  bool event(QEvent* event) override;

 private:
  void addFileCommands();
  void addGoCommands();
  void addViewCommands();
  void addProjectCommands();
  void addPlanCommands();
  void openTraces(const QStringList& paths);
  void openProject(const QString& path);
  void restoreProject();
  void chooseProject();
  void chooseProjectToSave(const std::function<void()>& then);
  void whenSaved(const std::function<void()>& then);
  void setChanged(bool changed);
  void setTitle(const QString& title);
  void showCapture();
  void addCompareCommands();
  void compareChanged();
  void swapRuns();
  void chooseOther();
  [[nodiscard]] Ghost comparedGhost() const;
  [[nodiscard]] Ghost simulatedGhost() const;
  void updateGhost();
  void keepBookmarks();
  void restoreBookmarks();
  void showRun(const RunPointer& run, const QString& title);
  void savePlan();
  void makeMenus();
  void followActions();
  void fillRecent();
  void forgetRecent();
  [[nodiscard]] QStringList recentFiles() const;
  void showContextMenu(const MenuTarget& target, const QPoint& where);
  void editBookmark(Nanoseconds time);
  void reload();
  void makeStatusBar();
  void connectViews();
  void loaded(const RunPointer& run);
  void fail(const QString& message);
  // A message of its own, where somebody sees it.
  void tell(const QString& title, const QString& message);
  void remember(const QStringList& paths);
  void showPalette();
  void chooseFiles(bool directory);
  void chooseModel();
  void chooseHardware(const QString& config);
  void chooseExport();
  [[nodiscard]] std::vector<PaletteEntry> found(const QString& text);

  QSettings& settings_;
  ActionRegistry actions_;
  SelectionContext context_;
  RunLoader loader_;
  PlanSession session_;
  CompareSession compare_;
  QStringList comparing_;       // paths of B
  bool ghosts_ = true;          // whether simulated lanes are shown
  bool own_ghost_ = false;      // of the run's own plan too, before it is edited
  QStringList opening_;         // of the run that is open
  QStringList wanted_;          // of the one that is being read
  bool planned_model_ = false;  // opening_ is a config.json
  QString planned_hardware_;
  QString project_path_;  // "": none
  QString opening_project_;
  std::optional<Project> pending_;  // restored when its run is there
  bool changed_ = false, restoring_ = false;
  QString error_;
  bool dark_ = false;
  bool unattended_ = false;
  QStackedWidget* pages_;
  std::vector<QAction*> entries_;  // of the menus, in the order of the commands
  QMenu* recent_ = nullptr;
  StartPage* start_ = nullptr;
  QWidget* workspace_;
  NoticeBar* notice_;
  HeadlineStrip* strip_;
  TimelineView* timeline_;
  QToolBar* bar_;
  Panels* panels_;
  QLabel* range_label_;
  QLabel* hover_label_;
  QLabel* frame_label_;
};

}  // namespace shardlens::gui
