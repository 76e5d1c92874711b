#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gui/model/run/run_data.h"
#include "gui/model/tables/tree_model.h"

namespace shardlens::gui {

// The plan's modules, each with the cost of its subtree in a window. For traces without a plan, the
// rows are made from the components of the units' names. Children with the same structure are
// folded into one row.
//
// [Note: Sums] A row's figures are the sums over all units within it. Time that belongs to no unit
// ("<loss>", "<optimizer>", …) has top rows of its own next to the model, so that the top rows sum
// to the headline.
class UnitTree : public TreeModel {
  Q_OBJECT
 public:
  enum Column { kName, kUnits, kBytes, kCompute, kGather, kReduce, kExposed, kColumnCount };
  static constexpr int kUnitRole = Qt::UserRole;  // QString: FQN; null if the row is not a unit
  static constexpr int kShareRole =
      Qt::UserRole + 1;  // double: exposed time / largest exposed time of a top row
  static constexpr int kIsUnitRole = Qt::UserRole + 2;   // bool
  static constexpr int kChangedRole = Qt::UserRole + 3;  // bool: differs in the edited plan
  static constexpr int kFoldFrom = 4;                    // this many equal siblings are folded

  explicit UnitTree(QObject* parent = nullptr);
  // `recovered`: for a run without a plan of its own, the plan recovered from its traces, or
  // nullptr.
  void show(RunPointer run, size_t rank, const PlanPointer& recovered = nullptr);
  // Shows the figures of a window in the rank's own time; after show(), those of the whole trace.
  void setWindow(const analysis::IntervalSet& window);
  // Shows as text how the edited plan treats each module; nullptr: no edited plan. Rows that the
  // run's own plan treats differently are marked (kChangedRole).
  void setPlan(const plan::ResolvedPlan* edited);
  // FQN of the row's module; for a folded row, those of all modules in it; empty if it has no
  // module.
  [[nodiscard]] std::vector<std::string> modulesAt(const QModelIndex& index) const;
  [[nodiscard]] QModelIndex indexOf(const std::string& unit) const;
  // The unit that the row's module belongs to: itself, or the nearest one around it. nullopt for
  // rows of several modules, and for modules whose parameters the plan ignores.
  [[nodiscard]] std::optional<std::string> unitAt(const QModelIndex& index) const;
  // The unit that a module of the plan belongs to, by its FQN ("" is the model).
  [[nodiscard]] std::optional<std::string> unitOfModule(const std::string& fqn) const;
  [[nodiscard]] Nanoseconds exposedAt(const QModelIndex& index) const;
  // Every unit within the row.
  [[nodiscard]] std::vector<std::string> unitsWithin(const QModelIndex& index) const;

  [[nodiscard]] QVariant data(const QModelIndex& index, int role) const override;

 private:
  struct Node {
    QString name;
    QString type;                           // type of the module, or the number of folded rows
    std::optional<std::string> unit;        // FQN, if the row is a unit
    std::optional<std::string> owner;       // FQN of the unit that the row's module belongs to
    bool several = false, ignored = false;  // a folded row; all its parameters are in no unit
    int module = -1;  // index into the plan's module tree; -1: none, or several
    QString plan;     // how the edited plan treats the module
    bool changed = false;
    QString blocks;   // figures of the blocks alike within it, one line each; empty: none
    Bytes bytes = 0;  // of its parameters, unsharded
    int units = 0;
    // Times in the window, summed over the subtree.
    Nanoseconds compute = 0, gather = 0, reduce = 0, other = 0;
    [[nodiscard]] Nanoseconds exposed() const { return gather + reduce + other; }
  };
  void addModules();
  void addUnits();
  void addOwners();
  void findOwners();
  int addNode(int parent, Node node);
  // The rows with every series of equal siblings replaced by one row.
  void fold();
  [[nodiscard]] std::vector<int> folded(std::vector<int> siblings);
  [[nodiscard]] std::string signature(int id) const;
  void sumUp(const std::vector<analysis::UnitFigures>& units);
  void describeBlocks(const std::vector<analysis::UnitFigures>& units);
  [[nodiscard]] QVariant textOf(const Node& node, int column) const;
  [[nodiscard]] Node& node(int id) { return nodes_[static_cast<size_t>(id)]; }
  [[nodiscard]] const Node& node(int id) const { return nodes_[static_cast<size_t>(id)]; }
  [[nodiscard]] const Node& at(const QModelIndex& index) const { return node(rowAt(index)); }

  RunPointer run_;
  PlanPointer plan_;  // the run's plan; nullptr: unknown
  size_t rank_ = 0;
  std::vector<Node> nodes_;  // by number of the row
  Nanoseconds largest_ = 0;  // exposed time of a top row
  struct {
    Nanoseconds compute = 0, gather = 0, reduce = 0;
  } largest_of_;  // of the top rows: their columns have the unit of this
};

}  // namespace shardlens::gui
