#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/plan/held_ranges.h"
#include "core/plan/shard_layout.h"
#include "gui/model/run/run_data.h"
#include "gui/model/run/selection_context.h"
#include "gui/model/tables/column_table.h"

namespace shardlens::gui {

// Collectives with exposed time in a window; these times sum to the headline's exposed time.
class ExposedTable : public ColumnTable {
  Q_OBJECT
 public:
  explicit ExposedTable(QObject* parent = nullptr);
  // `window` in the rank's own time. Empty without a run, or if the run does not have the rank.
  void show(RunPointer run, size_t rank, const analysis::IntervalSet& window);
  [[nodiscard]] Nanoseconds total() const { return total_; }
  [[nodiscard]] Selection::Item itemAt(const QModelIndex& index) const;
  [[nodiscard]] QModelIndex indexOfCollective(uint32_t collective) const;

 private:
  struct Row {
    uint32_t collective = 0;
    Nanoseconds exposed = 0;
  };
  [[nodiscard]] const RankData& of() const { return *run_->ranks[rank_]; }
  RunPointer run_;
  size_t rank_ = 0;
  analysis::IntervalSet window_;
  Nanoseconds total_ = 0;
  std::vector<Row> list_;
};

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

// Events of a rank: all, or only those that overlap a window and whose names contain a text.
class EventTable : public ColumnTable {
  Q_OBJECT
 public:
  explicit EventTable(QObject* parent = nullptr);
  void show(RunPointer run,
            size_t rank,
            const std::optional<analysis::Interval>& window,
            const QString& text);
  [[nodiscard]] uint32_t eventAt(const QModelIndex& index) const {
    return static_cast<uint32_t>(rowAt(index));
  }

 private:
  RunPointer run_;
  size_t rank_ = 0;
  std::optional<analysis::Interval> window_;
  QString filter_;
};

// Diagnostics: what was left out or repaired, and what may be wrong.
class DiagnosticTable : public ColumnTable {
  Q_OBJECT
 public:
  explicit DiagnosticTable(QObject* parent = nullptr);
  void show(RunPointer run);

 private:
  RunPointer run_;
};

// Which elements of each parameter each rank holds according to the plan.
class OwnershipTable : public QAbstractTableModel {
  Q_OBJECT
 public:
  enum class State : uint8_t { kUnknown, kSharded, kUnsharded };
  // Begin and end of the cell's slice as fractions of the parameter, 0 to 1.
  static constexpr int kFromRole = Qt::UserRole, kToRole = Qt::UserRole + 1;
  static constexpr int kStateRole = Qt::UserRole + 2;  // State of the parameter's unit
  static constexpr int kFixedColumns = 3;              // parameter, shape, state

  using QAbstractTableModel::QAbstractTableModel;
  // Lists the parameters of `unit`, or of the whole model if `unit` is not one of the plan's units.
  // Without a plan the table is empty and why() explains it. `recovered`: for a run without a plan
  // of its own, the plan recovered from its traces, in which each unit is one parameter.
  void show(RunPointer run,
            size_t rank,
            const std::optional<std::string>& unit,
            Nanoseconds instant,
            const PlanPointer& recovered = nullptr);
  [[nodiscard]] QString why() const { return why_; }
  // nullopt: the plan ignores the parameter.
  [[nodiscard]] std::optional<std::string> unitAt(const QModelIndex& index) const;

  [[nodiscard]] int rowCount(const QModelIndex& parent = {}) const override;
  [[nodiscard]] int columnCount(const QModelIndex& parent = {}) const override;
  [[nodiscard]] QVariant data(const QModelIndex& index, int role) const override;
  [[nodiscard]] QVariant headerData(int section,
                                    Qt::Orientation orientation,
                                    int role) const override;

 private:
  [[nodiscard]] const plan::ResolvedPlan& plan() const { return *plan_; }
  [[nodiscard]] plan::ShardLayout::Slice slice(const QModelIndex& index) const;
  RunPointer run_;
  PlanPointer plan_;
  QString why_;
  std::vector<plan::ParameterPlace> rows_;
  std::vector<plan::ShardLayout> layouts_;  // by unit
  std::vector<State> states_;               // by unit
};

// State of each of the trace's units (Trace::units) at `instant` of the rank's own time: kUnsharded
// or kSharded after the last action that the host issued; kUnknown if there is no earlier action.
[[nodiscard]] std::vector<OwnershipTable::State> unit_states(const trace::Trace& trace,
                                                             Nanoseconds instant);

}  // namespace shardlens::gui
