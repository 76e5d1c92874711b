#pragma once

#include <memory>

#include <QMainWindow>
#include <QSettings>

#include "gui/model/compare/plan_runs.h"
#include "gui/model/what_if/project.h"
#include "gui/view/window/bookmarks.h"
#include "gui/view/window/comparison_controller.h"
#include "gui/view/window/context_menu.h"
#include "gui/view/window/ghost_lanes.h"
#include "gui/view/window/project_controller.h"
#include "gui/view/window/run_opener.h"
#include "gui/view/window/status_line.h"
#include "gui/view/window/window_export.h"
#include "gui/view/window/window_menus.h"
#include "gui/view/window/window_parts.h"

namespace shardlens::gui {

// The main window: the start page until a run is open, then the headline, the timeline and the
// docks around it. It makes its parts and connects them; each part does one thing.
//
// Threads  the GUI thread; runs are read on another thread (RunLoader).
class MainWindow : public QMainWindow {
  Q_OBJECT
 public:
  // `settings` stores layout, theme and recent files; it must outlive the window.
  explicit MainWindow(QSettings& settings, QWidget* parent = nullptr);
  ~MainWindow() override;

  // See RunOpener.
  void open(const QStringList& paths) { opener_.open(paths); }
  void openModel(const QString& config, const QString& hardware) {
    opener_.openModel(config, hardware);
  }
  [[nodiscard]] QString sampleRun() const { return RunOpener::sampleRun(); }
  // Saves without figures: the plans are simulated again when the project is opened. Returns false
  // and sets lastError() if the file cannot be written.
  bool saveProject(const QString& path) { return project_.save(path); }
  // What was done so far is not the user's work: closing the window does not ask to save it.
  void setUnchanged() { project_.setUnchanged(); }
  [[nodiscard]] Project project() const { return project_.contents(); }
  // Applies a plan file as an edit of the session's plan. Returns false and sets lastError() on
  // failure.
  bool applyPlan(const QString& path);
  // Compares the open run with another run, B. settled() is emitted when B is loaded or loading
  // failed (lastError()).
  void compareWith(const QStringList& paths) { comparison_.open(paths); }
  // See WindowExport.
  bool exportTo(const QString& path, QWidget* view = nullptr) { return export_.write(path, view); }
  [[nodiscard]] QWidget* focusedView() const { return export_.focusedView(); }
  void setDark(bool dark);
  [[nodiscard]] bool isDark() const { return dark_; }
  // For use without a user: no questions are asked, and messages are only in lastError().
  void setUnattended() { messages_.setUnattended(); }
  // The error of the last load or export; "": none.
  [[nodiscard]] QString lastError() const { return messages_.lastError(); }

  [[nodiscard]] ActionRegistry& actions() { return actions_; }
  [[nodiscard]] SelectionContext& context() { return context_; }
  [[nodiscard]] TimelineView& timeline() { return pages_.timeline(); }
  [[nodiscard]] Panels& panels() { return panels_; }
  [[nodiscard]] HeadlineStrip& headline() { return pages_.headline(); }
  [[nodiscard]] NoticeBar& notice() { return pages_.notice(); }
  [[nodiscard]] RunLoader& loader() { return loader_; }
  [[nodiscard]] PlanSession& session() { return session_; }
  [[nodiscard]] PlanProposals& proposals() { return proposals_; }
  [[nodiscard]] CompareSession& compare() { return compare_; }
  [[nodiscard]] PlanRuns& runs() { return runs_; }

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
  void addCommands();
  void connectParts();
  void refreshOnChanges();  // the commands, which become enabled and disabled

  QSettings& settings_;
  ActionRegistry actions_;
  SelectionContext context_;
  RunLoader loader_;
  PlanSession session_;
  PlanProposals proposals_{session_};
  CompareSession compare_;
  PlanRuns runs_{session_};
  OpenedRun opened_;
  Messages messages_;
  RecentFiles recent_;
  WindowPages pages_;
  Panels& panels_;  // a child
  WindowParts parts_;
  StatusLine status_;
  Bookmarks bookmarks_;
  GhostLanes ghosts_;
  ComparisonController comparison_;
  ProjectController project_;
  RunOpener opener_;
  WindowExport export_;
  ContextMenu context_menu_;
  std::unique_ptr<WindowMenus> menus_;  // made when all commands exist
  bool dark_ = false;
};

}  // namespace shardlens::gui
