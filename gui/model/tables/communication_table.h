#pragma once

#include <optional>
#include <vector>

#include <QString>

#include "gui/model/run/selection_context.h"
#include "gui/model/tables/column_table.h"
#include "gui/model/what_if/edit_history.h"
#include "profiler/analysis/figures/communication_figures.h"

namespace shardlens::gui {

// Time and bytes of communication by purpose, group and kind: of the selected rank in the chosen
// window of the run, and of the simulated step of the plan in What if.
class CommunicationTable : public ColumnTable {
  Q_OBJECT
 public:
  explicit CommunicationTable(QObject* parent = nullptr);
  void show(const SelectionContext& selection, const PlanSession& session);
  // Of the run's rank, and of the plan; empty where there is none.
  [[nodiscard]] const std::vector<analysis::CommunicationFigures>& ofRun() const { return run_; }
  [[nodiscard]] const std::vector<analysis::CommunicationFigures>& ofPlan() const { return plan_; }

 private:
  static std::vector<Column> columns(const CommunicationTable* of);
  [[nodiscard]] const analysis::CommunicationFigures& at(size_t row) const {
    return row < run_.size() ? run_[row] : plan_[row - run_.size()];
  }
  std::vector<analysis::CommunicationFigures> run_, plan_;
};

}  // namespace shardlens::gui
