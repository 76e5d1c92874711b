#pragma once

#include <array>
#include <string>
#include <vector>

#include <QString>

#include "gui/model/tables/column_table.h"
#include "gui/model/what_if/edit_history.h"
#include "sim/memory/peak_memory.h"

namespace shardlens::gui {

// The memory that is alive at the simulated peak of the rank that needs most: for the session's
// first version, which is the plan as it ran, and for the current one, side by side.
class PeakTable : public ColumnTable {
  Q_OBJECT
 public:
  explicit PeakTable(QObject* parent = nullptr);
  // Empty without versions, or if the first or the current one could not be simulated.
  void show(const PlanSession& session);

  // A version's peak by category; they sum to it.
  struct Peak {
    QString title;  // "v2"
    std::array<Bytes, sim::kMemoryCategoryCount> categories{};
    Bytes available = 0;  // to the allocator; 0: unknown
    QString need;         // needText() of a plan that does not fit; otherwise ""
    [[nodiscard]] Bytes sum() const;
  };
  // The peaks of the first and the current version; only one if they are the same.
  [[nodiscard]] const std::vector<Peak>& peaks() const { return peaks_; }

 private:
  struct Row {
    sim::MemoryCategory category = sim::MemoryCategory::kParameters;
    std::string what, unit;
    Bytes before = 0, now = 0;
  };
  static std::vector<Column> columns(const PeakTable* of);
  std::vector<Row> list_;
  std::vector<Peak> peaks_;
};

}  // namespace shardlens::gui
