#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "sim/calibrate/calibrated_target.h"

#include "cli/run_options.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace shardlens::cli {

// What a simulated machine is made of, beside RunOptions::hardware.
struct MachineOptions {
  std::filesystem::path calibration;  // empty: the hardware's constants alone
  std::string stack;
};

// --hardware, --calibration, --stack and --world-size. Returns --calibration, for what excludes it.
CLI::Option* add_machine_options(CLI::App& app, RunOptions& run, MachineOptions& machine);

// A calibration's machine, or the spec under its stack; `adjust` has the last word on a spec.
// Errors: those of load_calibration, load_hardware and under_stack.
[[nodiscard]] sim::CalibratedTarget machine_of(
    const RunOptions& run,
    const MachineOptions& machine,
    const std::function<void(sim::HardwareSpec&)>& adjust = {});

}  // namespace shardlens::cli
