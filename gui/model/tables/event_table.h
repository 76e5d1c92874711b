#pragma once

#include <optional>

#include <QString>

#include "gui/model/run/run_data.h"
#include "gui/model/run/selection_context.h"
#include "gui/model/tables/column_table.h"

namespace shardlens::gui {

// Events of a rank by their start: all, or only those that overlap a window and whose names contain
// a text.
class EventTable : public ColumnTable {
  Q_OBJECT
 public:
  explicit EventTable(QObject* parent = nullptr);
  void show(RunPointer run,
            size_t rank,
            const std::optional<analysis::Interval>& window,
            const QString& text);
  [[nodiscard]] Selection::Item itemAt(const QModelIndex& index) const {
    return {rank_, Lane::Source::kEvents, eventAt(index)};
  }
  [[nodiscard]] uint32_t eventAt(const QModelIndex& index) const {
    return static_cast<uint32_t>(rowAt(index));
  }

 private:
  void sortByStart();
  RunPointer run_;
  size_t rank_ = 0;
  std::optional<analysis::Interval> window_;
  QString filter_;
  std::vector<uint32_t> by_start_;  // all events of the rank
};

}  // namespace shardlens::gui
