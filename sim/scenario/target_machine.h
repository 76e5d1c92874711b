#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "sim/calibrate/calibrated_cost_model.h"
#include "sim/calibrate/calibration.h"
#include "sim/calibrate/model_ratios.h"
#include "sim/cost/gpu_cost_model.h"
#include "sim/scenario/predict.h"

namespace shardlens::sim {

// The machine of a scenario: measured constants, a spec with its software stack, or both.
//
// Ownership  owns what target() points to; movable.
class TargetMachine {
 public:
  // `hardware`, in the format of --hardware. "": only the calibration; "ab:…": durations of
  // collectives, instead of the measured ones; a spec: everything that was not measured and, if the
  // calibrated run's collectives were emulated, their durations.
  // Errors: UsageError, InputError as load_hardware and AlphaBetaTimer::parse.
  // `off`: of CalibratedCostModel.
  explicit TargetMachine(Calibration calibration, const std::string& hardware = "", double off = 0);
  // Only a spec.
  explicit TargetMachine(HardwareSpec spec);
  // This machine with other constants, for the bounds of a prediction on it. `spec` is called only
  // if it has one, `calibration` only if it was calibrated; null: unchanged.
  [[nodiscard]] std::shared_ptr<const TargetMachine> changed(
      const std::function<void(Calibration&)>& calibration,
      const std::function<void(HardwareSpec&)>& spec,
      double off = 0) const;

  // A calibrated machine on which the operators of a model take what `ratios` say of them; `name`:
  // what it is called.
  [[nodiscard]] std::shared_ptr<const TargetMachine> with_ratios(
      std::shared_ptr<const ModelRatios> ratios, const std::string& name) const;

  [[nodiscard]] const Target& target() const { return target_; }
  [[nodiscard]] HostMode host() const {
    return calibration_ == nullptr ? HostMode::kAhead : calibration_->host;
  }
  // Number of ranks: all of the spec's, or those of the calibrated run.
  [[nodiscard]] int64_t ranks() const { return spec_ ? spec_->ranks() : calibration_->ranks; }
  [[nodiscard]] const std::optional<HardwareSpec>& spec() const { return spec_; }
  [[nodiscard]] const Calibration* calibration() const { return calibration_.get(); }
  // Of a calibrated machine; otherwise null.
  [[nodiscard]] const CalibratedCostModel* measured_costs() const { return calibrated_.get(); }
  [[nodiscard]] bool has_ratios() const { return ratios_ != nullptr; }

 private:
  TargetMachine() = default;
  void take_spec();
  void take_calibration(Calibration calibration, double off);

  std::unique_ptr<const Calibration> calibration_;  // its address is fixed: the model refers to it
  std::optional<HardwareSpec> spec_;
  std::shared_ptr<const CollectiveTimer> timer_;  // instead of measured collectives; may be null
  std::shared_ptr<const ModelRatios> ratios_;     // may be null
  std::unique_ptr<const CostModel> of_spec_;
  std::unique_ptr<const CalibratedCostModel> calibrated_;
  std::unique_ptr<const CostModel> of_model_;  // the calibrated costs with the ratios
  Target target_;
};

}  // namespace shardlens::sim
