#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gui/model/tables/tree_model.h"
#include "profiler/check/compare.h"

namespace shardlens::gui {

// The differences between two runs, in groups. A group's figures are the sums over its rows.
//
// [Note: Two kinds of rows] By::kStep lists the parts of the step (exposed times, compute, idle).
// They are disjoint, so that the changes of the top rows sum to the step's change. The other
// groupings list every compute, copy and collective. These overlap in time, so that their sum is
// not a time shown elsewhere.
class ComparisonTree : public TreeModel {
  Q_OBJECT
 public:
  enum class By : uint8_t { kStep, kUnit, kPhase, kKind };
  enum Column { kWhat, kA, kB, kDelta, kExposedA, kExposedB, kExposedDelta, kColumnCount };
  static constexpr int kShareRole = Qt::UserRole;          // double: |Δ| / largest |Δ| of a group
  static constexpr int kNoiseRole = Qt::UserRole + 1;      // bool: the change is within noise
  static constexpr int kUnmatchedRole = Qt::UserRole + 2;  // bool: on one side only

  explicit ComparisonTree(QObject* parent = nullptr);
  void show(std::shared_ptr<const check::Comparison> comparison, By by);
  [[nodiscard]] By by() const { return by_; }
  [[nodiscard]] double deltaAt(const QModelIndex& index) const;  // ns per step
  [[nodiscard]] std::optional<std::string> unitAt(const QModelIndex& index) const;

  [[nodiscard]] QVariant data(const QModelIndex& index, int role) const override;

 private:
  struct Row {
    QString what;
    std::optional<std::string> unit;
    std::optional<double> a, b, exposed_a, exposed_b;  // ns per step; nullopt: not in this run
    double delta = 0;
    bool within_noise = false;
    void add(const Row& row);
    [[nodiscard]] double exposed_delta() const {
      return exposed_b.value_or(0) - exposed_a.value_or(0);
    }
  };
  struct Group {
    Row sum;
    std::vector<Row> rows;  // the largest change first
  };
  [[nodiscard]] Row row_of(const check::ItemChange& item) const;
  [[nodiscard]] std::vector<Group> groups_of(const check::Comparison& comparison) const;
  [[nodiscard]] const Row& at(const QModelIndex& index) const {
    return rows_[static_cast<size_t>(rowAt(index))];
  }
  void findLargest();
  [[nodiscard]] QVariant shown(const Row& row, int column) const;
  By by_ = By::kStep;
  std::vector<Row> rows_;  // by number of the row
  double largest_ = 0;
  // Of all rows: the columns of both runs, and those of changes, have the unit of these.
  struct {
    double time = 0, delta = 0, exposed = 0, exposed_delta = 0;
  } largest_of_;
};

}  // namespace shardlens::gui
