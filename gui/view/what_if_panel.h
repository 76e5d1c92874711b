#pragma once

#include <vector>

#include <QWidget>

#include "gui/model/column_table.h"
#include "gui/model/plan_session.h"
#include "gui/view/theme.h"

class QComboBox;
class QFormLayout;
class QLabel;
class QSpinBox;
class QTableView;

namespace shardlens::gui {

// Step time against peak memory of all versions; those that no other beats in both are joined.
class ParetoPlot : public QWidget {
  Q_OBJECT
 public:
  explicit ParetoPlot(PlanSession& session, QWidget* parent = nullptr);
  void setTheme(const Theme& theme);
  [[nodiscard]] QSize minimumSizeHint() const override { return {140, 120}; }

 protected:
  void paintEvent(QPaintEvent* event) override;

 private:
  PlanSession& session_;
  const Theme* theme_;
};

// Versions by number that no other beats in step time and peak memory at once, by step time.
[[nodiscard]] std::vector<size_t> pareto(const std::vector<PlanVersion>& versions);

// Choose what the plan does; see what the simulator says, beside what was measured.
class WhatIfPanel : public QWidget {
  Q_OBJECT
 public:
  explicit WhatIfPanel(PlanSession& session, QWidget* parent = nullptr);
  void setTheme(const Theme& theme) { plot_->setTheme(theme); }
  [[nodiscard]] QTableView& table() { return *table_; }
  [[nodiscard]] QString note() const;
  [[nodiscard]] QComboBox& knob(size_t index) { return *knobs_[index]; }

 protected:
  void resizeEvent(QResizeEvent* event) override;

 private:
  void rebuild();  // the form, after another model
  void update();   // choices, figures
  void markChoices(size_t knob);
  void fitColumns();  // of the table, to its width
  PlanSession& session_;
  QWidget* form_box_;
  QFormLayout* form_ = nullptr;
  std::vector<QComboBox*> knobs_;
  QComboBox* hardware_ = nullptr;
  QSpinBox* ranks_ = nullptr;
  QSpinBox* batch_ = nullptr;
  QSpinBox* seq_ = nullptr;
  QLabel* note_;
  ColumnTable versions_;
  QTableView* table_;
  ParetoPlot* plot_;
  std::vector<QString> titles_;  // of the knobs that the form is made for
};

}  // namespace shardlens::gui
