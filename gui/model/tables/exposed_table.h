#pragma once

#include <vector>

#include "gui/model/run/exposed_list.h"
#include "gui/model/run/run_data.h"
#include "gui/model/run/selection_context.h"
#include "gui/model/tables/column_table.h"

namespace shardlens::gui {

// "all-gather, forward"
[[nodiscard]] QString part_label(const analysis::Collective& collective);

// Collectives with exposed time in a window; these times sum to the headline's exposed time.
class ExposedTable : public ColumnTable {
  Q_OBJECT
 public:
  explicit ExposedTable(QObject* parent = nullptr);
  // `window` in the rank's own time. Empty without a run, or if the run does not have the rank.
  void show(RunPointer run, size_t rank, const analysis::IntervalSet& window);
  [[nodiscard]] Nanoseconds total() const { return total_; }
  [[nodiscard]] Nanoseconds exposedAt(const QModelIndex& index) const {
    return list_[rowAt(index)].exposed;
  }
  [[nodiscard]] Selection::Item itemAt(const QModelIndex& index) const;
  [[nodiscard]] QModelIndex indexOfCollective(uint32_t collective) const;

 private:
  [[nodiscard]] const RankData& of() const { return *run_->ranks[rank_]; }
  RunPointer run_;
  size_t rank_ = 0;
  analysis::IntervalSet window_;
  Nanoseconds total_ = 0;
  std::vector<ExposedCollective> list_;
};

}  // namespace shardlens::gui
