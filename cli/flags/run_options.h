#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/workload/step_settings.h"

namespace CLI {
class App;
}

namespace shardlens::cli {

enum class Device : uint8_t { kCpu, kCuda };
enum class Backend : uint8_t { kGloo, kNccl, kEmulated };
enum class Precision : uint8_t { kFp32, kBf16, kFp16 };
enum class SaveFormat : uint8_t { kSharded, kFull };

// Flags of `shardlens capture`; `shardlens-worker` has the same flags. docs/reference/cli.md
// describes their defaults.
struct RunOptions {
  std::filesystem::path model;   // directory with config.json, or a config.json
  std::filesystem::path tokens;  // .bin: uint16; .u32.bin: uint32; any other: bytes
  std::filesystem::path out;
  std::filesystem::path plan;  // empty: `strategy`
  std::string strategy = "full_shard";
  std::string mesh;  // "RxS"; empty: the plan's

  int64_t nproc = 2;  // processes of capture; a worker uses WORLD_SIZE instead
  Device device = Device::kCpu;
  std::optional<Backend> backend;     // see backend_of
  std::optional<int64_t> world_size;  // emulated only
  int64_t rank = 0;                   // emulated only
  std::string hardware;               // emulated only; empty: "ab:5000:inf" on CPU

  int64_t steps = 10;      // all steps, including warmup
  int64_t warmup = 0;      // number of first steps that are not recorded
  bool one_epoch = false;  // end when all samples were used once; `steps` is then the most
  plan::StepSettings step{.batch = 2, .seq = 64};

  double lr = 1e-3;
  double weight_decay = 0.01;
  double norm_type = 2;                // inf: the largest gradient
  double loss_scale = 65536;           // fp16: initial value
  int64_t loss_scale_interval = 2000;  // fp16: steps without an infinite gradient until it doubles
  Precision precision = Precision::kFp32;
  uint64_t seed = 0;

  std::filesystem::path save;  // empty: do not save
  SaveFormat save_format = SaveFormat::kSharded;
  int64_t save_every = 0;              // 0: only at the end
  std::optional<int64_t> keep;         // checkpoints to keep; nullopt: all
  bool save_async = false;             // write checkpoints while later steps run
  std::filesystem::path resume;        // empty: start from --model
  std::filesystem::path trigger_file;  // if set, record only steps that begin while it exists
  int64_t on_signal = 0;               // record this many steps after each SIGUSR1; 0: all steps
  int64_t record_limit = 256;          // MiB that each rank's records may take
  bool record_newest = false;          // then remove the oldest steps instead of dropping new ones
  int64_t threads = 1;                 // operator threads of a worker
  int64_t timeout = 300;               // seconds, of joining and of each collective
  bool force_collectives = false;      // issue collectives even for groups of one rank
  bool force = false;      // `out` may have a capture without a mark, and `save` a model
  bool host_name = false;  // run.json has the machine's name and kernel

  friend bool operator==(const RunOptions&, const RunOptions&) = default;
};

// Declares every flag on `app`, writing to `options` when parsed. `options` must outlive `app`.
void add_run_options(CLI::App& app, RunOptions& options);
// Parts of add_run_options(): model and plan; the step.
void add_plan_options(CLI::App& app, RunOptions& options);
void add_step_options(CLI::App& app, RunOptions& options);
// Further parts: processes and their device; precision.
void add_process_options(CLI::App& app, RunOptions& options);
void add_precision_option(CLI::App& app, RunOptions& options);

// Parses a worker's command line. Returns an exit code if there is nothing to run: after --help.
// Errors: UsageError.
[[nodiscard]] std::optional<ExitCode> parse_worker_flags(CLI::App& app, int argc, char** argv);

// Checks everything that does not need a file: ranges, and flags that exclude or need each other.
// Errors: UsageError naming the flag, its value and the expected values.
void check(const RunOptions& options);
// check_sizes() checks --batch, --seq and --accumulate; check_step() checks --no-sync as well.
void check_sizes(const plan::StepSettings& step);
void check_step(const plan::StepSettings& step);

// The backend given, or gloo on the CPU and nccl on CUDA.
[[nodiscard]] Backend backend_of(const RunOptions& options);
// --world-size if emulated, otherwise --nproc. Not for a worker of a real group, which uses
// WORLD_SIZE.
[[nodiscard]] int64_t world_size_of(const RunOptions& options);
// --hardware, or "ab:5000:inf".
[[nodiscard]] std::string hardware_of(const RunOptions& options);

[[nodiscard]] std::string name_of(Device device);        // "cpu", "cuda"
[[nodiscard]] std::string name_of(Backend backend);      // "gloo", "nccl", "emulated"
[[nodiscard]] std::string name_of(Precision precision);  // "fp32", "bf16", "fp16"
[[nodiscard]] std::string name_of(SaveFormat format);    // "sharded", "full"

// Flags from which add_run_options() gives the same options.
[[nodiscard]] std::vector<std::string> to_arguments(const RunOptions& options);
// The options as a JSON object with the flags' names as keys, for run.json.
[[nodiscard]] std::string to_json(const RunOptions& options);

}  // namespace shardlens::cli
