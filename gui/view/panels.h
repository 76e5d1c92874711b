#pragma once

#include <vector>

#include <QObject>
#include <QTimer>

#include "gui/model/selection_context.h"
#include "gui/model/tables.h"
#include "gui/model/unit_tree.h"
#include "gui/view/delegates.h"
#include "gui/view/theme.h"

class QAbstractItemView;
class QDockWidget;
class QLabel;
class QLineEdit;
class QMainWindow;
class QPlainTextEdit;
class QTableView;
class QTreeView;

namespace shardlens::gui {

class ComparePanel;
class CompareSession;
class Inspector;
class ModuleBar;
class PlanSession;
class WhatIfPanel;

// The docks around the timeline: each shows the selection and changes it.
class Panels : public QObject {
  Q_OBJECT
 public:
  Panels(SelectionContext& context,
         PlanSession& session,
         CompareSession& compare,
         QMainWindow& window);

  struct Panel {
    QDockWidget* dock = nullptr;
    QAbstractItemView* view = nullptr;  // whose model is exported as CSV; may be null
  };
  [[nodiscard]] const std::vector<Panel>& all() const { return panels_; }
  void setTheme(const Theme& theme);
  void arrange();  // as at the first start
  [[nodiscard]] WhatIfPanel& whatIf() { return *what_if_; }
  [[nodiscard]] ModuleBar& moduleBar() { return *module_bar_; }
  [[nodiscard]] QPlainTextEdit& notes() { return *notes_; }
  [[nodiscard]] ComparePanel& compare() { return *compare_; }
  void raise(const QString& id);  // the panel of that name
  void focusSearch();
  void setInstant(Nanoseconds shown);  // that ownership states speak of
  void flush();                        // updates now what waits for a pause in typing or dragging

  UnitTree tree;
  OwnershipTable ownership;
  ExposedTable exposed;
  OrderTable order;
  EventTable events;
  DiagnosticTable diagnostics;

 signals:
  void zoomRequested();  // to what was activated

 private:
  QDockWidget* add(const QString& id,
                   const QString& title,
                   QWidget* content,
                   QAbstractItemView* view);
  QTableView* table(ColumnTable& model, const QString& name);
  void makeTree();
  void makeOwnership();
  void makeTables();
  void runChanged();
  void planChanged();
  void fitTree();
  void selectionChanged();
  void updateEvents();
  void revealUnit();
  [[nodiscard]] bool chosen(const QAbstractItemView& view, const QModelIndex& index) const;

  SelectionContext& context_;
  PlanSession& session_;
  QMainWindow& window_;
  std::vector<Panel> panels_;
  QTimer later_;
  QTreeView* tree_view_ = nullptr;
  ModuleBar* module_bar_ = nullptr;
  QTableView* ownership_view_ = nullptr;
  QTableView* exposed_view_ = nullptr;
  QTableView* order_view_ = nullptr;
  QTableView* event_view_ = nullptr;
  QTableView* problem_view_ = nullptr;
  QLabel* ownership_note_ = nullptr;
  QLabel* exposed_note_ = nullptr;
  QLabel* order_note_ = nullptr;
  QLabel* event_note_ = nullptr;
  QLabel* problem_note_ = nullptr;
  QLineEdit* search_ = nullptr;
  Inspector* inspector_ = nullptr;
  WhatIfPanel* what_if_ = nullptr;
  ComparePanel* compare_ = nullptr;
  QPlainTextEdit* notes_ = nullptr;
  ShareDelegate* share_ = nullptr;
  SliceDelegate* slice_ = nullptr;
  QDockWidget* event_dock_ = nullptr;
  Nanoseconds instant_ = 0;
  size_t shown_rank_ = 0;
  bool updating_ = false;  // a view's selection follows the context, not the other way round
};

}  // namespace shardlens::gui
