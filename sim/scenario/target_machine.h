#pragma once

#include <memory>
#include <optional>
#include <string>

#include "sim/calibrate/calibrated_cost_model.h"
#include "sim/calibrate/calibration.h"
#include "sim/cost/gpu_cost_model.h"
#include "sim/scenario/predict.h"

namespace shardlens::sim {

// The machine of a scenario: measured constants, a spec with its software stack, or both.
//
// Ownership  owns what target() points to; movable.
class TargetMachine {
 public:
  // `hardware`, as --hardware takes it: "" the calibration alone; "ab:…" how long collectives take,
  // instead of what was measured; a spec: all that the calibration does not know, and the links of
  // an emulated one.
  // Errors: UsageError, InputError as load_hardware and AlphaBetaTimer::parse.
  explicit TargetMachine(Calibration calibration, const std::string& hardware = "");
  // A spec alone.
  explicit TargetMachine(HardwareSpec spec);

  [[nodiscard]] const Target& target() const { return target_; }
  [[nodiscard]] HostMode host() const {
    return calibration_ == nullptr ? HostMode::kAhead : calibration_->host;
  }
  // How many there are: all of the spec's, otherwise those of the calibrated run.
  [[nodiscard]] int64_t ranks() const { return spec_ ? spec_->ranks() : calibration_->ranks; }
  [[nodiscard]] const std::optional<HardwareSpec>& spec() const { return spec_; }
  [[nodiscard]] const Calibration* calibration() const { return calibration_.get(); }

 private:
  void take_spec();

  std::unique_ptr<const Calibration> calibration_;  // at one address: the model refers to it
  std::optional<HardwareSpec> spec_;
  std::unique_ptr<const CostModel> of_spec_, calibrated_;
  Target target_;
};

}  // namespace shardlens::sim
