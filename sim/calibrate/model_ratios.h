#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/plan/resolved_plan.h"
#include "core/workload/workload.h"
#include "sim/calibrate/calibrated_cost_model.h"
#include "sim/cost/scaled_cost_model.h"

namespace shardlens::sim {

// How long the operators of a run's model take on the machine of the run, under other degrees of
// `tensor` and `context` than the run's.
//
// [Note: Operators of other degrees] A run has the operators of its own degrees; the model has
// those of every degree. Operators are of one kind if they are of the same part of a step (forward
// with loss, backward, optimizer), all inside or all outside of the blocks, and all products,
// attention or something else. The model's operators under the run's own plan are priced by the
// lines of their classes, not by what was measured of their shapes, because most shapes of other
// degrees did not run. The recorded operators' time by the sum of these prices is a factor on all
// operators of the kind. So under the run's own plan each kind takes as long as was recorded, and
// on another mesh as much more or less as its operators' prices are. An operator whose class did
// not run is priced by its FLOPs or bytes, at the mean rate of the recorded ones of its kind;
// nothing if there is none.
class ModelRatios {
 public:
  // `recorded`: a pass under `own`; `model`: the same of the model, by the modules of `of_model`.
  // Errors: InputError of CalibratedCostModel for operators of the model without any price.
  ModelRatios(const plan::Workload& recorded,
              const plan::ResolvedPlan& own,
              const plan::Workload& model,
              const plan::ResolvedPlan& of_model,
              const CalibratedCostModel& costs);

  [[nodiscard]] WorkTime compute(const plan::Operator& op, const CalibratedCostModel& costs) const;
  [[nodiscard]] Nanoseconds issue(const plan::Operator& op, const CalibratedCostModel& costs) const;

 private:
  static constexpr size_t kParts = 3, kWorks = 3;  // products, attention, the rest
  struct Kind {
    double recorded = 0, work = 0, model = 0;  // sums of the pass: ns, work_of(), ns
    double factor = 1;
    [[nodiscard]] double rate() const { return work > 0 ? recorded / work : 0; }
  };
  struct Part {  // of a step, inside or outside of blocks
    std::array<Kind, kWorks> kinds;
    double recorded_issue = 0, model_issue = 0, operators = 0;
    double issue_factor = 1;
  };

  [[nodiscard]] size_t part_of(const plan::Operator& op, bool in_block) const;
  [[nodiscard]] bool in_block(const std::string& module) const;
  [[nodiscard]] const Part& part(const plan::Operator& op) const;
  void add_recorded(const plan::Workload& recorded,
                    const plan::ResolvedPlan& own,
                    const CalibratedCostModel& costs);
  void set_factors();

  std::vector<std::string> blocks_;  // empty: the run's units do not tell blocks from the rest
  std::array<Part, 2 * kParts> parts_{};
};

// The costs of a calibrated machine with a model's ratios. Both must outlive it.
class ModelCostModel final : public ScaledCostModel {
 public:
  ModelCostModel(const CalibratedCostModel& costs, const ModelRatios& ratios)
      : ScaledCostModel(costs, {}), costs_(costs), ratios_(ratios) {}

  [[nodiscard]] WorkTime compute(const plan::Operator& op) const override {
    return ratios_.compute(op, costs_);
  }
  using ScaledCostModel::issue;
  [[nodiscard]] Nanoseconds issue(const plan::Operator& op) const override {
    return ratios_.issue(op, costs_);
  }

 private:
  const CalibratedCostModel& costs_;
  const ModelRatios& ratios_;
};

}  // namespace shardlens::sim
