#pragma once

#include <functional>
#include <vector>

#include <QObject>
#include <QTimer>

#include "gui/model/run/selection_context.h"
#include "gui/model/tables/diagnostic_table.h"
#include "gui/model/tables/event_table.h"
#include "gui/model/tables/exposed_table.h"
#include "gui/model/tables/order_table.h"
#include "gui/model/tables/ownership_table.h"
#include "gui/model/tables/unit_tree.h"
#include "gui/view/widgets/delegates.h"
#include "gui/view/widgets/menu_target.h"
#include "gui/view/widgets/theme.h"

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

// The docks around the timeline. Each dock shows the selection and can change it.
class Panels : public QObject {
  Q_OBJECT
 public:
  Panels(SelectionContext& context,
         PlanSession& session,
         CompareSession& compare,
         QMainWindow& window);

  struct Panel {
    QDockWidget* dock = nullptr;
    QAbstractItemView* view = nullptr;  // its model is exported as CSV; may be null
  };
  [[nodiscard]] const std::vector<Panel>& all() const { return panels_; }
  void setTheme(const Theme& theme);
  void arrange();  // restores the layout of the first start
  [[nodiscard]] WhatIfPanel& whatIf() { return *what_if_; }
  [[nodiscard]] ModuleBar& moduleBar() { return *module_bar_; }
  [[nodiscard]] QPlainTextEdit& notes() { return *notes_; }
  [[nodiscard]] ComparePanel& compare() { return *compare_; }
  void raise(const QString& id);  // brings the panel with this id to the front
  void focusSearch();
  void setInstant(Nanoseconds shown);  // the instant of Ownership's unit states
  void flush();                        // runs pending delayed updates now

  UnitTree tree;
  OwnershipTable ownership;
  ExposedTable exposed;
  OrderTable order;
  EventTable events;
  DiagnosticTable diagnostics;

 signals:
  void menuRequested(const shardlens::gui::MenuTarget& target, const QPoint& where);
  void goRequested();  // to show the selection in the timeline

 protected:
  bool eventFilter(QObject* watched, QEvent* event) override;

 private:
  QDockWidget* add(const QString& id,
                   const QString& title,
                   QWidget* content,
                   QAbstractItemView* view);
  QTableView* table(ColumnTable& model, const QString& name);
  void makeTree();
  void makeOwnership();
  void makeTables();
  void makeMenus();
  [[nodiscard]] MenuTarget target(const QAbstractItemView& view, const QModelIndex& index) const;
  void runChanged();
  void planChanged();
  static void fit(QTableView& view);
  void fitTree();
  void measureOwnership();
  void fitOwnership();
  void selectionChanged();
  void updateEvents();
  void revealUnit();
  // Calls `choose` when the user selects a row or clicks it again. A double click or Enter also
  // emits goRequested().
  void choosing(QAbstractItemView& view, std::function<void(const QModelIndex&)> choose);

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
  static constexpr int kCopiedRows = 20'000;  // larger tables cannot be copied as a whole
  int slice_width_ = 0;                       // minimum width of a rank's column in Ownership
  Nanoseconds instant_ = 0;
  size_t shown_rank_ = 0;
  bool updating_ = false;  // views are being updated from the context and must not change it
};

}  // namespace shardlens::gui
