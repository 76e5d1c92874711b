#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <QAbstractTableModel>

#include "core/plan/ownership.h"
#include "gui/model/run/run_data.h"

namespace shardlens::gui {

// Which elements of each parameter each rank holds according to the plan.
class OwnershipTable : public QAbstractTableModel {
  Q_OBJECT
 public:
  enum class State : uint8_t { kUnknown, kSharded, kUnsharded };
  // The rank's part as a QRectF of fractions of the parameter, 0 to 1: across, of its elements or
  // of the first dimension that is divided; down, of the second if two are divided.
  static constexpr int kPartRole = Qt::UserRole;
  static constexpr int kStateRole = Qt::UserRole + 1;  // State of the parameter's unit
  static constexpr int kFixedColumns = 3;              // parameter, shape, state

  using QAbstractTableModel::QAbstractTableModel;
  // Lists the parameters of `unit`, or of the whole model if `unit` is not one of the plan's units.
  // Without a plan the table is empty and why() explains it. `recovered`: for a run without a plan
  // of its own, the plan recovered from its traces, in which each unit is one parameter. If only
  // the instant differs from the last call's, the rows stay the same.
  void show(RunPointer run,
            size_t rank,
            const std::optional<std::string>& unit,
            Nanoseconds instant,
            const PlanPointer& recovered = nullptr);
  [[nodiscard]] QString why() const { return why_; }
  // nullopt: the plan ignores the parameter.
  [[nodiscard]] std::optional<std::string> unitAt(const QModelIndex& index) const;
  // Bytes of the listed parameters that the rank keeps between steps.
  [[nodiscard]] Bytes kept(int64_t rank) const;
  // The listed parameters in a sentence: their size, and what the shown rank and the others keep.
  [[nodiscard]] QString summary() const;
  // The column of the shown rank; 0 if the plan has no such rank.
  [[nodiscard]] int columnOfRank() const;

  [[nodiscard]] int rowCount(const QModelIndex& parent = {}) const override;
  [[nodiscard]] int columnCount(const QModelIndex& parent = {}) const override;
  [[nodiscard]] QVariant data(const QModelIndex& index, int role) const override;
  [[nodiscard]] QVariant headerData(int section,
                                    Qt::Orientation orientation,
                                    int role) const override;

 private:
  [[nodiscard]] const plan::ResolvedPlan& plan() const { return *plan_; }
  void list(const std::optional<std::string>& unit);
  void sumUp();
  [[nodiscard]] int64_t shownRank() const { return run_->ranks[rank_]->figures.rank; }
  void setInstant(size_t rank, Nanoseconds instant);
  [[nodiscard]] State stateAt(const QModelIndex& index) const;
  [[nodiscard]] QVariant fixedText(const QModelIndex& index, int role) const;
  [[nodiscard]] QString partHelp(const QModelIndex& index) const;
  [[nodiscard]] plan::HeldPart part(const QModelIndex& index) const;
  RunPointer run_;
  PlanPointer plan_;
  RunPointer shown_;  // the last call's run, also if it has no plan
  size_t rank_ = 0;
  std::optional<std::string> unit_;
  Nanoseconds instant_ = 0;
  QString why_;
  std::vector<plan::ParameterPlace> rows_;
  plan::Ownership ownership_;
  std::vector<State> states_;  // by unit
  std::vector<Bytes> kept_;    // by rank
  Bytes whole_ = 0;            // all listed parameters, unsharded
};

// State of units, by FQN, at `instant` of the rank's own time, from RankData::residencies:
// kUnsharded while the rank holds the unit, kSharded after it did; units that were not held before
// are absent.
using UnitStates = std::map<std::string, OwnershipTable::State, std::less<>>;
[[nodiscard]] UnitStates unit_states(std::span<const Residency> residencies, Nanoseconds instant);

}  // namespace shardlens::gui
