#pragma once

#include <QWidget>

#include "gui/model/plan/plan_session.h"
#include "gui/model/tables/column_table.h"
#include "gui/view/widgets/theme.h"

class QComboBox;
class QLabel;
class QTableView;

namespace shardlens::gui {

class ParetoPlot;
class PlanForm;

// Edits the plan and shows the simulated versions next to the measured run.
class WhatIfPanel : public QWidget {
  Q_OBJECT
 public:
  explicit WhatIfPanel(PlanSession& session, QWidget* parent = nullptr);
  void setTheme(const Theme& theme);
  [[nodiscard]] QTableView& table() { return *table_; }
  [[nodiscard]] QString note() const;
  [[nodiscard]] QComboBox& knob(size_t index);
  [[nodiscard]] PlanForm& form() { return *form_; }

 protected:
  void resizeEvent(QResizeEvent* event) override;

 private:
  void update();
  void fitColumns();  // hides the last columns that do not fit the table's width
  [[nodiscard]] QString baselineNote() const;
  PlanSession& session_;
  PlanForm* form_;
  QLabel* note_;
  ColumnTable versions_;
  QTableView* table_;
  ParetoPlot* plot_;
  QString learning_;  // progress of observing the run, as text
};

}  // namespace shardlens::gui
