#pragma once

#include <vector>

#include <QString>

#include "gui/model/run/run_data.h"
#include "gui/model/run/selection_context.h"
#include "gui/model/tables/column_table.h"

namespace shardlens::gui {

// All ranks of a run in the selected window: what each spent its time with, and how long the others
// waited for it. The rank that others waited for longest comes first.
class RanksTable : public ColumnTable {
  Q_OBJECT
 public:
  explicit RanksTable(QObject* parent = nullptr);
  // Reads the run and the window of `selection`; empty without a run.
  void show(const SelectionContext& selection);
  [[nodiscard]] size_t rankAt(const QModelIndex& index) const { return list_[rowAt(index)].rank; }
  [[nodiscard]] QModelIndex indexOfRank(size_t rank) const;
  // The run in a sentence: the exposed time of all ranks, and the straggler if there is one.
  [[nodiscard]] QString summary() const;

 private:
  struct Row {
    size_t rank = 0;  // position in the run
    StepFigures figures;
    Nanoseconds held_up = 0;  // of the whole run
    int64_t last = 0;         // collectives of the whole run that it started last
  };
  static std::vector<Column> columns(const RanksTable* of);
  RunPointer run_;
  std::vector<Row> list_;
};

}  // namespace shardlens::gui
