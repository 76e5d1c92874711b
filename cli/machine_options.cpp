#include "cli/machine_options.h"

#include <utility>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "sim/hardware/stacks.h"

namespace shardlens::cli {

CLI::Option* add_machine_options(CLI::App& app, RunOptions& run, MachineOptions& machine) {
  app.add_option("--hardware", run.hardware,
                 "8xA100-40, 8xA100-80, 8xH100, 8xH200, 8xB200, 4xPCIe, or a spec file; beside "
                 "--calibration also ab:MICROSECONDS:GBPS")
      ->option_text("SPEC (required without --calibration)");
  CLI::Option* calibration =
      app.add_option("--calibration", machine.calibration,
                     "what `shardlens calibrate` measured: goes before --hardware");
  app.add_option("--stack", machine.stack,
                 "constants fitted to published runs of a software stack (docs/simulator.md)");
  app.add_option("--world-size", run.world_size,
                 "ranks [the spec's GPUs on all its nodes, or the calibrated run's ranks]");
  return calibration;
}

sim::CalibratedTarget machine_of(const RunOptions& run,
                                 const MachineOptions& machine,
                                 const std::function<void(sim::HardwareSpec&)>& adjust) {
  if (!machine.calibration.empty()) {
    return sim::CalibratedTarget(sim::load_calibration(machine.calibration.string()), run.hardware);
  }
  sim::HardwareSpec spec = sim::load_hardware(run.hardware);
  if (!machine.stack.empty()) {
    spec = sim::under_stack(spec, machine.stack);
  }
  if (adjust) {
    adjust(spec);
  }
  return sim::CalibratedTarget(std::move(spec));
}

}  // namespace shardlens::cli
