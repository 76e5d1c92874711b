#pragma once

#include <functional>
#include <initializer_list>
#include <optional>

#include <QAbstractItemView>
#include <QWidget>

#include "gui/model/base/action_registry.h"
#include "gui/model/compare/compare_session.h"
#include "gui/model/compare/plan_runs.h"
#include "gui/model/run/selection_context.h"
#include "gui/model/what_if/edit_history.h"
#include "gui/model/what_if/plan_proposals.h"
#include "gui/view/widgets/menu_target.h"
#include "gui/view/widgets/theme.h"

class QLineEdit;
class QToolButton;

namespace shardlens::gui {

// The parts of the window that panels read and change. All of them outlive the panels.
struct PanelContext {
  SelectionContext& selection;
  PlanSession& session;
  PlanProposals& proposals;
  CompareSession& compare;
  ActionRegistry& actions;
  PlanRuns& runs;
};

// The content of one dock. A derived class lives in a file of its own and is created
// through the table in panel_table.cpp. It overrides what it needs of the functions below.
//
// A panel that changes its views in runChanged() or selectionChanged() does not change the
// selection by that: onChosen() only reports what the user does.
class Panel : public QWidget {
  Q_OBJECT
 public:
  explicit Panel(const PanelContext& context);

  // The view whose table is exported and copied; nullptr: the panel has no table.
  [[nodiscard]] QAbstractItemView* view() const { return view_; }
  // The box that finds rows by text; nullptr: none.
  [[nodiscard]] virtual QLineEdit* search() const { return nullptr; }
  // Selects the next (+1) or previous (-1) row that search() found, and goes to it in the timeline.
  virtual void walkFound(int /*way*/) {}
  [[nodiscard]] MenuTarget targetAt(const QModelIndex& index) const;

  void showRun();        // after another run was opened, or its plan was recovered
  void showSelection();  // some milliseconds after the last change of the selection
  virtual void planChanged() {}
  virtual void setTheme(const Theme& /*theme*/) {}
  // The timeline's pointer, in display time; nullopt: it is elsewhere.
  virtual void showCursor(std::optional<Nanoseconds> /*time*/) {}
  // Whether its content is still being computed, on another thread.
  [[nodiscard]] virtual bool isBusy() const { return false; }
  virtual void becameVisible() {}  // the dock was shown, or its tab was chosen

 signals:
  void menuRequested(const shardlens::gui::MenuTarget& target, const QPoint& where);
  void goRequested();      // to show the selection in the timeline
  void updateRequested();  // showSelection() is called soon

 protected:
  [[nodiscard]] SelectionContext& selection() const { return context_.selection; }
  [[nodiscard]] PlanSession& session() const { return context_.session; }
  [[nodiscard]] PlanProposals& proposals() const { return context_.proposals; }
  [[nodiscard]] CompareSession& compare() const { return context_.compare; }
  [[nodiscard]] ActionRegistry& actions() const { return context_.actions; }
  [[nodiscard]] PlanRuns& planRuns() const { return context_.runs; }

  virtual void runChanged() {}  // followed by selectionChanged() and fitColumns()
  virtual void selectionChanged() {}
  virtual void fitColumns() {}  // to the new run's texts
  // The view became wider or narrower; called after watchWidth().
  virtual void widthChanged() {}
  // Sets item, unit or time of `target` to what the row is about.
  virtual void describe(const QModelIndex& /*index*/, MenuTarget& /*target*/) const {}

  // Makes the panel of these widgets, from top to bottom.
  void stack(std::initializer_list<QWidget*> widgets);
  // A button that does what a command of the window does, and can be pressed when the command can.
  [[nodiscard]] QToolButton* commandButton(const QString& text, const char* command);
  void setView(QAbstractItemView& view);  // gives the view its context menu and its keys
  // Whether the user sees the panel: Qt calls panels behind a tab visible.
  [[nodiscard]] bool isSeen() const { return isVisible() && !visibleRegion().isEmpty(); }
  // Names the view that is shown now, in a panel with several views. Each was given to setView()
  // once.
  void showView(QAbstractItemView& view) { view_ = &view; }
  void watchWidth();  // of the view
  // Calls `choose` when the user selects a row of the view or clicks it again. A double click or
  // Enter also emits goRequested().
  void onChosen(std::function<void(const QModelIndex&)> choose);

  bool eventFilter(QObject* watched, QEvent* event) override;

 private:
  void requestMenu(const QPoint& where);
  PanelContext context_;
  QAbstractItemView* view_ = nullptr;
  bool updating_ = false;  // views are being updated and must not change the selection
};

}  // namespace shardlens::gui
