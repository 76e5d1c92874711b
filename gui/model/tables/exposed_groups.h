#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gui/model/run/run_data.h"
#include "gui/model/run/selection_context.h"
#include "gui/model/tables/column_table.h"

namespace shardlens::gui {

// The exposed collectives of a window, summed by unit and kind: of the selected rank, or of all
// ranks. The times of all rows sum to the exposed time of these ranks.
class ExposedGroups : public ColumnTable {
  Q_OBJECT
 public:
  explicit ExposedGroups(QObject* parent = nullptr);
  // Reads run, rank and window of `selection`; empty without a run.
  void show(const SelectionContext& selection, bool all_ranks);
  void clear();  // lets go of the run
  [[nodiscard]] Nanoseconds total() const { return total_; }
  // The row's collective with the most exposed time.
  [[nodiscard]] Nanoseconds exposedAt(const QModelIndex& index) const {
    return list_[rowAt(index)].exposed;
  }
  [[nodiscard]] Selection::Item worstAt(const QModelIndex& index) const {
    return list_[rowAt(index)].worst;
  }
  // The row that the collective is part of.
  [[nodiscard]] QModelIndex indexOf(const Selection::Item& collective) const;

 private:
  static constexpr Nanoseconds kNoSpread = -1;  // not matched across the ranks
  struct Row {
    std::string owner;  // RankData::owner_of()
    QString kind;       // "all-gather, forward"
    size_t count = 0;
    Nanoseconds exposed = 0, worst_exposed = 0;
    Selection::Item worst;
    // The matched collectives, each by its event on the last rank: the rank's position in the run,
    // and the index there.
    std::vector<std::pair<uint32_t, uint32_t>> matched;
    Nanoseconds spread = kNoSpread;
  };
  static std::vector<Column> columns(const ExposedGroups* of);
  void takeSpreads();
  void add(size_t rank, uint32_t collective, Nanoseconds exposed);
  void setSpread(Row& row) const;

  RunPointer run_;
  // From the first rank's start of a collective to the last one's, kept at the last rank's: by
  // rank, then by index.
  std::vector<std::vector<Nanoseconds>> spreads_;
  Nanoseconds total_ = 0;
  std::map<std::pair<std::string, QString>, size_t> rows_;  // by owner and kind: into list_
  std::vector<Row> list_;
};

}  // namespace shardlens::gui
