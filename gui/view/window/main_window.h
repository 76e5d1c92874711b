#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include <QMainWindow>
#include <QSettings>

#include "gui/model/base/action_registry.h"
#include "gui/model/compare/compare_session.h"
#include "gui/model/plan/plan_session.h"
#include "gui/model/plan/project.h"
#include "gui/model/run/run_loader.h"
#include "gui/model/run/selection_context.h"
#include "gui/view/panels/panels.h"
#include "gui/view/timeline/timeline_layout.h"
#include "gui/view/widgets/command_palette.h"
#include "gui/view/widgets/theme.h"

class QLabel;
class QMenu;
class QStackedWidget;
class QToolBar;

namespace shardlens::gui {

class HeadlineStrip;
class NoticeBar;
class StartPage;
class TimelineView;

// The main window: the start page until a run is open, then the headline, the timeline and the
// docks around it.
//
// Threads  the GUI thread; runs are read on another thread (RunLoader).
class MainWindow : public QMainWindow {
  Q_OBJECT
 public:
  // `settings` stores layout, theme and recent files; it must outlive the window.
  explicit MainWindow(QSettings& settings, QWidget* parent = nullptr);
  ~MainWindow() override;

  // Opens traces, capture directories, or one project. Asks the user first if the open project has
  // unsaved changes.
  void open(const QStringList& paths);
  // Opens a model's config.json instead of a run: the model is fully sharded over the GPUs of a
  // spec and simulated. `hardware`: a spec's name or file; "": the user is asked (if unattended,
  // this is an error: lastError()).
  void openModel(const QString& config, const QString& hardware);
  // Saves without figures: the plans are simulated again when the project is opened. Returns false
  // and sets lastError() if the file cannot be written.
  bool saveProject(const QString& path);
  [[nodiscard]] Project project() const;
  // Applies a plan file as an edit of the session's plan. Returns false and sets lastError() on
  // failure.
  bool applyPlan(const QString& path);
  // Compares the open run with another run, B. settled() is emitted when B is loaded or loading
  // failed (lastError()).
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

  // Path of the small capture that comes with the program; "" if it is not installed.
  [[nodiscard]] QString sampleRun() const;
  // Writes by the extension of `path`: PNG or SVG of `view`, or CSV of its table. `view` nullptr:
  // PNG of the whole window, SVG of the timeline, CSV of the modules. Returns false and sets
  // lastError() on failure.
  bool exportTo(const QString& path, QWidget* view = nullptr);
  // The panel that has the keyboard focus, else the timeline.
  [[nodiscard]] QWidget* focusedView() const;
  // For use without a user: no questions are asked, and messages are only in lastError().
  void setUnattended() { unattended_ = true; }
  // The error of the last load or export; "": none.
  [[nodiscard]] QString lastError() const { return error_; }

 signals:
  // A load has ended, with or without success.
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
  // Shows a message box, unless unattended.
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
  bool own_ghost_ = false;      // whether the run's own plan is shown simulated before it is edited
  QStringList opening_;         // paths of the open run
  QStringList wanted_;          // paths of the run that is being read
  bool planned_model_ = false;  // opening_ is a config.json
  QString planned_hardware_;
  QString project_path_;  // "": none
  QString opening_project_;
  std::optional<Project> pending_;  // to be restored when its run is loaded
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
