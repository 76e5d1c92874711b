#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <QAbstractItemModel>

#include "gui/model/run_data.h"

namespace shardlens::gui {

// Modules of the plan (of traces without one: the units' names, by component), each with what its
// subtree cost in a window. Children that are built alike are folded under one row.
//
// [Note: Sums] A row's figures are those of all units within it. What belongs to no unit ("<loss>",
// "<optimizer>", …) has rows of its own beside the model, so that the top rows sum to the headline.
class UnitTree : public QAbstractItemModel {
  Q_OBJECT
 public:
  enum Column { kName, kUnits, kBytes, kCompute, kGather, kReduce, kExposed, kColumnCount };
  static constexpr int kUnitRole = Qt::UserRole;  // QString: FQN; null where it is no unit
  static constexpr int kShareRole =
      Qt::UserRole + 1;  // double: of the largest exposed time of a row
  static constexpr int kIsUnitRole = Qt::UserRole + 2;   // bool
  static constexpr int kChangedRole = Qt::UserRole + 3;  // bool: the edited plan differs
  static constexpr int kFoldFrom = 4;                    // so many alike are folded

  using QAbstractItemModel::QAbstractItemModel;
  // `recovered`: of a run without a plan of its own, what its trace tells; nullptr: nothing.
  void show(RunPointer run, size_t rank, const PlanPointer& recovered = nullptr);
  // Figures of a window of the rank's own time; show() takes all of it.
  void setWindow(const analysis::IntervalSet& window);
  // What the edited plan does with each module, in words; nullptr: there is none. Rows that the
  // run's own plan treats otherwise say so (kChangedRole).
  void setPlan(const plan::ResolvedPlan* edited);
  // FQNs of the row's module, of all that are folded in it; none for what is no module.
  [[nodiscard]] std::vector<std::string> modulesAt(const QModelIndex& index) const;
  [[nodiscard]] QModelIndex indexOf(const std::string& unit) const;
  [[nodiscard]] std::optional<std::string> unitAt(const QModelIndex& index) const;
  [[nodiscard]] Nanoseconds exposedAt(const QModelIndex& index) const;
  // Every unit within the row.
  [[nodiscard]] std::vector<std::string> unitsWithin(const QModelIndex& index) const;

  [[nodiscard]] QModelIndex index(int row,
                                  int column,
                                  const QModelIndex& parent = {}) const override;
  [[nodiscard]] QModelIndex parent(const QModelIndex& index) const override;
  [[nodiscard]] int rowCount(const QModelIndex& parent = {}) const override;
  [[nodiscard]] int columnCount(const QModelIndex& parent = {}) const override;
  [[nodiscard]] QVariant data(const QModelIndex& index, int role) const override;
  [[nodiscard]] QVariant headerData(int section,
                                    Qt::Orientation orientation,
                                    int role) const override;

 private:
  struct Node {
    QString name;
    QString type;                     // of the module, or what is folded
    std::optional<std::string> unit;  // FQN, if it is one
    int module = -1;                  // of the plan's module tree; -1: none, or several
    QString plan;                     // what the edited plan does with it
    bool changed = false;
    int parent = -1;  // -1: a top row
    int row = 0;
    std::vector<int> children;
    Bytes bytes = 0;  // of its parameters, whole
    int units = 0;
    // Of the window, summed over the subtree.
    Nanoseconds compute = 0, gather = 0, reduce = 0, other = 0;
    [[nodiscard]] Nanoseconds exposed() const { return gather + reduce + other; }
  };
  void addModules();
  void addUnits();
  void addOwners();
  int addNode(int parent, Node node);
  void fold();
  std::vector<int> folded(int parent, std::vector<int> siblings);
  [[nodiscard]] std::string signature(int node) const;
  void sumUp(const std::vector<analysis::UnitFigures>& units);
  void tellAll();
  [[nodiscard]] const Node& at(const QModelIndex& index) const {
    return nodes_[static_cast<size_t>(index.internalId())];
  }

  RunPointer run_;
  PlanPointer plan_;  // the run's; nullptr: none is known
  size_t rank_ = 0;
  std::vector<Node> nodes_;
  std::vector<int> top_;
  Nanoseconds largest_ = 0;
};

}  // namespace shardlens::gui
