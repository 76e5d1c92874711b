#pragma once

#include <optional>
#include <string>

#include "gui/model/run/run_data.h"
#include "gui/model/run/selection_context.h"
#include "gui/model/tables/column_table.h"

namespace shardlens::gui {

// The collectives planned, issued and started in a step, side by side; rows that differ are
// emphasized.
class OrderTable : public ColumnTable {
  Q_OBJECT
 public:
  explicit OrderTable(QObject* parent = nullptr);
  void show(RunPointer run, size_t rank, size_t step);  // index into RankData::orders
  // One line: whether the orders agree, or the first position where they differ.
  [[nodiscard]] QString verdict() const { return verdict_; }
  [[nodiscard]] std::optional<std::string> unitAt(const QModelIndex& index) const;
  // The rank's collective that belongs to the row's started entry, else to its issued entry;
  // nullopt: the rank has none.
  [[nodiscard]] std::optional<Selection::Item> itemAt(const QModelIndex& index) const;

 private:
  RunPointer run_;
  size_t rank_ = 0, step_ = 0;
  const analysis::StepOrder* order_ = nullptr;
  QString verdict_;
};

}  // namespace shardlens::gui
