#include "cli/capture/capture.h"

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/standard_output.h"
#include "core/files/atomic_file.h"
#include "core/json/json_dump.h"
#include "core/model/step_workload.h"
#include "core/workload/workload.h"
#include "sim/cost/collective_cost.h"

#include "cli/capture/capture_directory.h"
#include "cli/capture/engine_program.h"
#include "cli/capture/host_info.h"
#include "cli/capture/supervisor.h"
#include "cli/flags/prepared_run.h"
#include "cli/flags/run_options.h"
#include "cli/flags/run_outputs.h"
#include "cli/flags/save_place.h"
#include "cli/flags/saved_run.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

void check_device(const RunOptions& options) {
  if (options.device == Device::kCuda && gpu_count() == 0) {
    throw InputError("--device cuda",
                     "this machine has no NVIDIA GPU with a loaded driver; use --device cpu");
  }
  if (backend_of(options) == Backend::kNccl && options.nproc > gpu_count()) {
    throw InputError(
        fmt::format("--nproc {}", options.nproc),
        fmt::format("this machine has {} GPU{}, and NCCL needs one for each rank; --backend "
                    "emulated --world-size {} runs one of these ranks on one GPU",
                    gpu_count(), gpu_count() == 1 ? "" : "s", options.nproc));
  }
  if (backend_of(options) == Backend::kEmulated) {
    (void)sim::make_collective_timer(hardware_of(options));
  }
}

std::string run_json(const RunOptions& options,
                     const std::string& worker,
                     const std::string& identifier) {
  nlohmann::ordered_json out;
  out["schema"] = 1;
  out["capture"] = identifier;
  std::vector<std::string> command = to_arguments(options);
  command.insert(command.begin(), {"shardlens", "capture"});
  out["command"] = std::move(command);
  out["versions"] = {
      {"shardlens", SHARDLENS_VERSION}, {"torch", torch_of(worker)}, {"compiler", __VERSION__}};
  out["hardware"] = nlohmann::ordered_json::parse(host_info_json(options.host_name));
  out["options"] = nlohmann::ordered_json::parse(to_json(options));
  if (backend_of(options) == Backend::kEmulated) {
    out["numerics"] = "emulated";
  }
  return plan::json_text(out, 2) + "\n";
}

DirectoryLock write_inputs(const RunOptions& options,
                           const PreparedRun& run,
                           const std::string& worker) {
  const std::string config = copied_config(run.config.source);
  CaptureDirectory prepared = prepare_capture_directory(options.out, options.force);
  write_file_atomically(options.out / "plan.json", plan::to_json(run.plan.plan));
  plan::StepSettings step = options.step;
  step.program =
      options.device == Device::kCuda ? plan::Program::kEngineOnGpu : plan::Program::kEngineOnCpu;
  const plan::Workload workload = plan::step_workload(run.config, run.plan, step);
  write_file_atomically(options.out / "workload.json", plan::to_json(workload, run.plan));
  write_file_atomically(options.out / "run.json", run_json(options, worker, prepared.identifier));
  // A copy, so that the order check has the model even when the capture is moved.
  if (!config.empty()) {
    write_file_atomically(options.out / "config.json", config);
  }
  return std::move(prepared.lock);
}

}  // namespace

int capture(const RunOptions& options,
            const LineSink& sink,
            std::optional<std::chrono::milliseconds> longest) {
  check(options);
  check_device(options);
  check_outputs(options);
  check_capture_directory(options.out, options.force);
  const PreparedRun run = prepare_run(options, world_size_of(options));
  {
    // Before --out is emptied. Rank 0 locks the directory again for the whole run.
    const auto lock = lock_save_directory(options);
    for (const fs::path& path : find_saved_run(options).unfinished) {
      write_stderr("{} is not complete: its save was interrupted\n", path.string());
    }
    try_save_directory(options, run.plan, lock.get());
  }
  SupervisorOptions supervised;
  supervised.program = worker_program("capture");
  supervised.arguments = to_arguments(options);
  supervised.directory = options.out;
  supervised.sink = sink;
  supervised.longest = longest;
  const bool emulated = backend_of(options) == Backend::kEmulated;
  supervised.processes = emulated ? 1 : static_cast<int>(options.nproc);
  supervised.first_rank = emulated ? static_cast<int>(options.rank) : 0;
  const DirectoryLock lock = write_inputs(options, run, supervised.program);
  const SupervisorResult result = supervise(supervised);
  const std::string spools =
      tidy_capture_directory(options.out, supervised.first_rank, supervised.processes);
  int traces = 0, without = -1;  // a rank without a trace; -1: none
  for (int rank = supervised.first_rank; rank < supervised.first_rank + supervised.processes;
       ++rank) {
    const bool exists = fs::exists(options.out / fmt::format("rank{}.pt.trace.json.gz", rank));
    traces += exists ? 1 : 0;
    without = exists || without >= 0 ? without : rank;
  }
  if (result.exit_code != 0) {
    const std::string recorded = !spools.empty() ? spools
                                 : traces > 0
                                     ? fmt::format("{} traces in {}", traces, options.out.string())
                                     : "";
    throw Error(
        static_cast<ExitCode>(result.exit_code),
        result.message +
            (recorded.empty() ? "" : "; recorded until then: " + recorded + " (analyze reads it)"));
  }
  if (without >= 0) {
    throw RuntimeFault(fmt::format(
        "[rank {0}] ended without an error, but did not write {1}/rank{0}.pt.trace.json.gz",
        without, options.out.string()));
  }
  return supervised.processes;
}

}  // namespace shardlens::cli
