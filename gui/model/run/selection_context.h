#pragma once

#include <optional>
#include <string>
#include <vector>

#include <QObject>

#include "core/base/units.h"
#include "gui/model/run/run_data.h"

namespace shardlens::gui {

// What is selected. Each optional part may be absent. Times are display times.
struct Selection {
  struct Item {
    size_t rank = 0;  // index into RunData::ranks
    Lane::Source source = Lane::Source::kEvents;
    uint32_t ref = 0;  // as Lane counts
    friend bool operator==(const Item&, const Item&) = default;
  };
  size_t rank = 0;                  // that tables and the headline show
  std::optional<size_t> step;       // index into RankAnalysis::steps
  std::optional<std::string> unit;  // as UnitFigures::fqn
  std::optional<Item> item;
  std::optional<analysis::Interval> range;  // dragged
  friend bool operator==(const Selection&, const Selection&) = default;
};

// The selection that all views share: a view requests a change here, and every view redraws on
// changed(). back() and forward() go through the history of selections.
class SelectionContext : public QObject {
  Q_OBJECT
 public:
  explicit SelectionContext(QObject* parent = nullptr) : QObject(parent) {}

  [[nodiscard]] const Selection& current() const { return current_; }
  [[nodiscard]] const RunPointer& run() const { return run_; }
  [[nodiscard]] const RankData* rank() const;  // the selected one; nullptr without a run

  void setRun(RunPointer run);  // resets selection and history
  // changed() reaches the caller too, which must not respond with another change. A selection whose
  // rank or step the run does not have is ignored.
  void select(const Selection& selection);
  void selectRank(size_t rank);
  void selectStep(std::optional<size_t> step);
  void selectUnit(std::optional<std::string> unit);
  void selectItem(const Selection::Item& item);  // and the item's unit, if it has one
  void selectRange(std::optional<analysis::Interval> range);
  // Makes the selected item the range, or extends the range to it.
  void measureItem();
  void clear();  // keeps rank and step
  [[nodiscard]] bool canClear() const;

  // The window that figures are computed for: the dragged range, else the step, else the whole
  // trace; in the rank's own time.
  [[nodiscard]] analysis::IntervalSet window() const;
  // The same window on another rank, in that rank's own time: the range at the same display time,
  // or the step of the same number; empty if the rank does not have the step.
  [[nodiscard]] analysis::IntervalSet windowOf(size_t rank) const;
  // Start and end of the selected item, in display time.
  [[nodiscard]] std::optional<analysis::Interval> itemInterval() const;

  [[nodiscard]] bool canGoBack() const { return at_ > 0; }
  [[nodiscard]] bool canGoForward() const { return at_ + 1 < history_.size(); }
  void back();
  void forward();

 signals:
  void runChanged();
  void changed();

 private:
  [[nodiscard]] bool exists(const Selection& selection) const;
  RunPointer run_;
  Selection current_;
  std::vector<Selection> history_{Selection{}};
  size_t at_ = 0;
  static constexpr size_t kHistory = 200;
};

[[nodiscard]] bool is_collective(const Selection::Item& item);
// Start and end of `item`, in the rank's own time.
[[nodiscard]] analysis::Interval interval_of(const RankData& rank, const Selection::Item& item);
// The unit (or section, such as "<clip>") that the item belongs to; nullopt: none.
[[nodiscard]] std::optional<std::string> unit_of(const RankData& rank, const Selection::Item& item);

}  // namespace shardlens::gui
