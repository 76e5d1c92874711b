#pragma once

#include <map>
#include <vector>

#include <QString>

#include "gui/model/run/run_data.h"
#include "gui/model/run/selection_context.h"
#include "gui/model/tables/column_table.h"
#include "gui/model/tables/event_filter.h"

namespace shardlens::gui {

// The key by which events are summed up.
enum class EventGrouping : uint8_t { kName, kCategory, kTrack, kUnit };

// The events that EventTable lists, summed up by name, category, thread or stream, or unit: of one
// rank or of all. The durations of events that contain each other (operators in operators) all
// count, and an event that a window cuts counts with its whole duration.
//
// Complexity  show(): a pass over the events, and a search in the sections of the host for kUnit.
class EventGroups : public ColumnTable {
  Q_OBJECT
 public:
  explicit EventGroups(QObject* parent = nullptr);
  struct Asked {
    EventFilter filter;  // `window` is not read
    EventGrouping by = EventGrouping::kName;
    bool all_ranks = false;
    friend bool operator==(const Asked&, const Asked&) = default;
  };
  // Reads run, rank and window of `selection`; the window is the dragged range, else the step, else
  // everything. The largest sum is first.
  void show(const SelectionContext& selection, const Asked& asked);
  void clear();  // lets go of the run

  struct Group {
    QString name;
    int64_t count = 0;
    Nanoseconds sum = 0, least = 0, most = 0;
    Selection::Item longest;
  };
  [[nodiscard]] const Group& groupAt(const QModelIndex& index) const {
    return groups_[rowAt(index)];
  }
  // The number of events in the groups that are shown.
  [[nodiscard]] int64_t count() const { return count_; }
  [[nodiscard]] Nanoseconds sum() const { return sum_; }
  // The duration of all events of the category in the window, whatever their names. Shares are
  // fractions of it.
  [[nodiscard]] Nanoseconds total() const { return total_; }
  // The row that the event is part of.
  [[nodiscard]] QModelIndex indexOf(const Selection::Item& item) const;

 private:
  static std::vector<Column> columns(const EventGroups* of);
  void addRank(const SelectionContext& selection, size_t rank, std::map<QString, size_t>& rows);

  RunPointer run_;
  size_t rank_ = 0;
  Asked asked_;
  std::vector<analysis::IntervalSet> windows_;  // by rank that is shown
  std::vector<Group> groups_;
  int64_t count_ = 0;
  Nanoseconds sum_ = 0, total_ = 0;
};

// "(root)", "<optimizer>", "(none)": the unit or section of the host that launched each event, or
// that it is in, as a number per event and the numbers' names.
struct EventOwners {
  std::vector<uint32_t> owner;  // by event
  std::vector<QString> names;   // by owner
};
[[nodiscard]] EventOwners event_owners(const RankData& rank);

// The window in which events are listed: the dragged range, else the chosen step; nullopt: all.
[[nodiscard]] std::optional<analysis::Interval> event_window(const SelectionContext& selection,
                                                             size_t rank);

}  // namespace shardlens::gui
