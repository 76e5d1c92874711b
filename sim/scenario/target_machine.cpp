#include "sim/scenario/target_machine.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "sim/cost/collective_cost.h"

namespace shardlens::sim {

TargetMachine::TargetMachine(Calibration calibration, const std::string& hardware, double off) {
  const std::string source =
      calibration.sources.empty() ? "calibration" : calibration.sources.front();
  std::string name = source;
  // No limit: the cost model rejects collectives of a number of ranks that was not measured.
  target_.ranks = std::numeric_limits<int64_t>::max();
  if (hardware.starts_with("ab:")) {
    timer_ = make_collective_timer(hardware);
    name += " with collectives of " + hardware;
  } else if (!hardware.empty()) {
    spec_ = load_hardware(hardware);
    take_spec();
    name = source + ", otherwise " + spec_->name;
    timer_ = calibration.emulated.empty() ? nullptr : make_collective_timer(hardware);
  }
  target_.name = std::move(name);
  take_calibration(std::move(calibration), off);
}

void TargetMachine::take_calibration(Calibration calibration, double off) {
  calibration_ = std::make_unique<const Calibration>(std::move(calibration));
  calibrated_ = std::make_unique<CalibratedCostModel>(*calibration_, of_spec_.get(), timer_, off);
  target_.costs = calibrated_.get();
  if (ratios_ != nullptr) {
    of_model_ = std::make_unique<ModelCostModel>(*calibrated_, *ratios_);
    target_.costs = of_model_.get();
  }
  target_.outside = std::llround(calibration_->outside_us * 1e3);
  target_.norm_communication = std::llround(calibration_->norm_communication_us * 1e3);
  target_.outside_communication = std::llround(calibration_->outside_communication_us * 1e3);
}

TargetMachine::TargetMachine(HardwareSpec spec) : spec_(std::move(spec)) {
  take_spec();
  target_.costs = of_spec_.get();
  target_.outside = std::llround(spec_->software.step_us * 1e3);
}

std::shared_ptr<const TargetMachine> TargetMachine::changed(
    const std::function<void(Calibration&)>& calibration,
    const std::function<void(HardwareSpec&)>& spec,
    double off) const {
  std::shared_ptr<TargetMachine> out(new TargetMachine);
  out->target_ = target_;
  out->timer_ = timer_;
  out->spec_ = spec_;
  out->ratios_ = ratios_;
  if (out->spec_) {
    if (spec) {
      spec(*out->spec_);
    }
    out->take_spec();
    out->target_.costs = out->of_spec_.get();
    out->target_.outside = std::llround(out->spec_->software.step_us * 1e3);
  }
  if (calibration_ != nullptr) {
    Calibration constants = *calibration_;
    if (calibration) {
      calibration(constants);
    }
    out->take_calibration(std::move(constants), off);
  }
  out->target_.name = target_.name;
  return out;
}

std::shared_ptr<const TargetMachine> TargetMachine::with_ratios(
    std::shared_ptr<const ModelRatios> ratios, const std::string& name) const {
  std::shared_ptr<TargetMachine> out(new TargetMachine);
  out->target_ = target_;
  out->timer_ = timer_;
  out->spec_ = spec_;
  out->ratios_ = std::move(ratios);
  if (out->spec_) {
    out->take_spec();
  }
  out->take_calibration(*calibration_, 0);
  out->target_.ranks = target_.ranks;
  out->target_.name = name;
  return out;
}

void TargetMachine::take_spec() {
  of_spec_ = std::make_unique<GpuCostModel>(*spec_);
  target_.name = spec_->name;
  target_.ranks = spec_->ranks();
  target_.memory = spec_->gpu.memory;
  target_.outside_memory = spec_->outside;
}

}  // namespace shardlens::sim
