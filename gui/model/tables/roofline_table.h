#pragma once

#include <optional>
#include <string>
#include <vector>

#include <QString>

#include "gui/model/run/selection_context.h"
#include "gui/model/tables/column_table.h"
#include "gui/model/what_if/edit_history.h"
#include "sim/scenario/operator_work.h"

namespace shardlens::gui {

// The key by which the operators of a step are summed up.
enum class RooflineGrouping : uint8_t { kUnit, kModule, kKind, kOperator };

// FLOPs, bytes and time of a step's operators, and the shares of the GPU's rates that they reach:
// as recorded, and as simulated for the plan in What if.
class RooflineTable : public ColumnTable {
  Q_OBJECT
 public:
  explicit RooflineTable(QObject* parent = nullptr);
  void show(const SelectionContext& selection,
            const PlanSession& session,
            RooflineGrouping grouping);

  struct Row {
    QString name;
    std::string unit;  // FQN of the largest part's unit
    bool measured = false;
    double count = 0, flops = 0, bytes = 0, time = 0;  // of a step; time in nanoseconds
    // The least times on the GPU, summed over the operators; 0: the GPU is not known.
    double compute = 0, memory = 0, roofline = 0;
    double share = 0;  // of the time of all rows of its section
    double most = 0;   // time of the largest part
    [[nodiscard]] double tflops() const { return time > 0 ? flops / time / 1e3 : 0; }
    [[nodiscard]] double intensity() const { return bytes > 0 ? flops / bytes : 0; }
    [[nodiscard]] double ofPeak() const { return time > 0 ? compute / time : 0; }
    [[nodiscard]] double ofRoofline() const { return time > 0 ? roofline / time : 0; }
    [[nodiscard]] bool isKnown() const { return compute > 0 || memory > 0; }
  };
  [[nodiscard]] const std::vector<Row>& rows() const { return list_; }
  [[nodiscard]] const Row& rowOf(const QModelIndex& index) const { return list_[rowAt(index)]; }
  // The GPU of the recorded run, and of the plan; nullopt: not known.
  [[nodiscard]] const std::optional<sim::HardwareSpec>& ofRun() const { return run_gpu_; }
  [[nodiscard]] const std::optional<sim::HardwareSpec>& ofPlan() const { return plan_gpu_; }
  // Sentences that say what the table shows, and why shares are missing.
  [[nodiscard]] const QString& summary() const { return summary_; }

 private:
  static std::vector<Column> columns(const RooflineTable* of);
  void add(const std::vector<sim::OperatorWork>& work,
           const std::optional<sim::HardwareSpec>& hardware,
           RooflineGrouping grouping,
           bool measured);
  [[nodiscard]] static Row total(const std::vector<Row>& rows, bool measured);
  [[nodiscard]] QString totalText(bool measured, const QString& what) const;

  std::vector<Row> list_;
  std::optional<sim::HardwareSpec> run_gpu_, plan_gpu_;
  QString summary_;
};

// The GPU that the run's traces name, as a spec; nullopt: they name none, or there is no spec.
[[nodiscard]] std::optional<sim::HardwareSpec> recorded_gpu(const RunData& run);

}  // namespace shardlens::gui
