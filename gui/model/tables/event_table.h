#pragma once

#include <QString>

#include "gui/model/run/run_data.h"
#include "gui/model/run/selection_context.h"
#include "gui/model/tables/column_table.h"
#include "gui/model/tables/event_filter.h"

namespace shardlens::gui {

// Events of a rank by their start: all, or those that a filter leaves.
class EventTable : public ColumnTable {
  Q_OBJECT
 public:
  explicit EventTable(QObject* parent = nullptr);
  void show(RunPointer run, size_t rank, const EventFilter& filter);
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
  EventFilter filter_;
  std::vector<uint32_t> by_start_;  // all events of the rank
};

// The name of a thread or stream, else its number.
[[nodiscard]] QString track_name(const trace::Trace& trace, const trace::Track& track);

}  // namespace shardlens::gui
