#include "sim/scenario/target_machine.h"

#include <cmath>
#include <limits>

#include "sim/cost/collective_cost.h"

namespace shardlens::sim {

TargetMachine::TargetMachine(Calibration calibration, const std::string& hardware, double off)
    : calibration_(std::make_unique<const Calibration>(std::move(calibration))) {
  target_.name = calibration_->sources.empty() ? "calibration" : calibration_->sources.front();
  // No limit: the cost model rejects collectives of a number of ranks that was not measured.
  target_.ranks = std::numeric_limits<int64_t>::max();
  std::shared_ptr<const CollectiveTimer> timer;
  if (hardware.starts_with("ab:")) {
    timer = make_collective_timer(hardware);
    target_.name += " with collectives of " + hardware;
  } else if (!hardware.empty()) {
    spec_ = load_hardware(hardware);
    take_spec();
    target_.name = calibration_->sources.front() + ", otherwise " + spec_->name;
    timer = calibration_->emulated.empty() ? nullptr : make_collective_timer(hardware);
  }
  calibrated_ = std::make_unique<CalibratedCostModel>(*calibration_, of_spec_.get(), timer, off);
  target_.costs = calibrated_.get();
  target_.outside = std::llround(calibration_->outside_us * 1e3);
  target_.norm_communication = std::llround(calibration_->norm_communication_us * 1e3);
  target_.outside_communication = std::llround(calibration_->outside_communication_us * 1e3);
}

TargetMachine::TargetMachine(HardwareSpec spec) : spec_(std::move(spec)) {
  take_spec();
  target_.costs = of_spec_.get();
  target_.outside = std::llround(spec_->software.step_us * 1e3);
}

void TargetMachine::take_spec() {
  of_spec_ = std::make_unique<GpuCostModel>(*spec_);
  target_.name = spec_->name;
  target_.ranks = spec_->ranks();
  target_.memory = spec_->gpu.memory;
  target_.outside_memory = spec_->outside;
}

}  // namespace shardlens::sim
