#include "cli/flags/run_options.h"

#include <cmath>
#include <map>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/json/json_dump.h"
#include "core/plan/plan.h"
#include "core/workload/step_limits.h"

#include "cli/flags/parse_flags.h"

namespace shardlens::cli {
namespace {

const std::map<std::string, Device> kDevices{{"cpu", Device::kCpu}, {"cuda", Device::kCuda}};
const std::map<std::string, Backend> kBackends{
    {"gloo", Backend::kGloo}, {"nccl", Backend::kNccl}, {"emulated", Backend::kEmulated}};
const std::map<std::string, plan::Optimizer> kOptimizers{{"adamw", plan::Optimizer::kAdamW},
                                                         {"sgd", plan::Optimizer::kSgd}};
const std::map<std::string, Precision> kPrecisions{
    {"fp32", Precision::kFp32}, {"bf16", Precision::kBf16}, {"fp16", Precision::kFp16}};
const std::map<std::string, SaveFormat> kSaveFormats{{"sharded", SaveFormat::kSharded},
                                                     {"full", SaveFormat::kFull}};

template <typename T>
std::string key_of(const std::map<std::string, T>& names, T value) {
  for (const auto& [name, candidate] : names) {
    if (candidate == value) {
      return name;
    }
  }
  throw RuntimeFault("internal error: a flag's value has no name");
}

void add_data_options(CLI::App& app, RunOptions& o) {
  app.add_option("--tokens", o.tokens,
                 "token file: .bin: little-endian uint16; .u32.bin: uint32; any other file: bytes")
      ->required();
  app.add_option("--out", o.out, "directory to write to")->required();
  app.add_flag(
      "--force", o.force,
      "replace files of a capture in --out that no mark says this program made, and a model "
      "in --save");
}

void add_world_options(CLI::App& app, RunOptions& o) {
  app.add_option(
         "--backend", o.backend,
         "gloo (default on cpu), nccl (default on cuda), or emulated: one process runs one rank of "
         "an emulated world")
      ->transform(CLI::CheckedTransformer(kBackends))
      ->option_text("gloo|nccl|emulated");
  app.add_option("--world-size", o.world_size, "emulated: number of ranks");
  app.add_option("--rank", o.rank, "emulated: the rank that runs")->capture_default_str();
  app.add_option(
      "--hardware", o.hardware,
      "emulated: durations of collectives: ab:MICROSECONDS:GBPS, a spec such as 8xH100, or a spec "
      "file [ab:5000:inf]");
  app.add_option("--timeout", o.timeout,
                 "seconds after which a collective, or joining the other ranks, fails")
      ->capture_default_str();
  app.add_flag("--force-collectives", o.force_collectives,
               "issue collectives even for groups of one rank");
  app.add_flag("--host-name", o.host_name,
               "write this machine's name and kernel into run.json too");
}

void add_training_options(CLI::App& app, RunOptions& o) {
  app.add_option("--steps", o.steps, "training steps, warmup included")->capture_default_str();
  app.add_flag("--one-epoch", o.one_epoch,
               "end when every sample was used once; --steps is then the most. In the last step "
               "ranks without data join the others");
  app.add_option("--warmup", o.warmup, "number of first steps that are not recorded")
      ->capture_default_str();
  app.add_option("--lr", o.lr, "learning rate")->capture_default_str();
  app.add_option("--weight-decay", o.weight_decay, "weight decay")->capture_default_str();
  app.add_option("--clip", o.step.clip, "clip gradients to this global norm");
  app.add_option("--norm-type", o.norm_type,
                 "p of the p-norm of gradients; inf: the largest gradient")
      ->capture_default_str();
  app.add_option("--loss-scale", o.loss_scale, "fp16: initial factor on the loss")
      ->capture_default_str();
  app.add_option("--loss-scale-interval", o.loss_scale_interval,
                 "fp16: steps without an infinite gradient after which the factor doubles")
      ->capture_default_str();
  app.add_option("--seed", o.seed, "seed of random weights, if there is no checkpoint")
      ->capture_default_str();
  app.add_option("--save", o.save,
                 "save checkpoints in this directory, at the end and when the run is stopped");
  app.add_option("--save-every", o.save_every, "save after every so many steps too");
  app.add_option("--keep", o.keep, "keep only so many checkpoints, the latest [all]");
  app.add_flag("--save-async", o.save_async,
               "write checkpoints while later steps run; a step waits only for the copy");
  app.add_option("--save-format", o.save_format,
                 "sharded: each rank writes what it stores, with the optimizer (shardlens docs "
                 "checkpoints); "
                 "full: at the end, the model's Hugging Face directory")
      ->transform(CLI::CheckedTransformer(kSaveFormats))
      ->option_text("sharded|full [sharded]");
  app.add_option("--resume", o.resume,
                 "continue from a checkpoint, from the latest in a directory of these, or with the "
                 "weights of a Hugging Face directory");
  app.add_option("--trigger-file", o.trigger_file,
                 "record only steps at whose beginning this file exists");
  app.add_option("--on-signal", o.on_signal,
                 "record only so many steps after each SIGUSR1 to this process (and those of "
                 "--trigger-file)");
  app.add_option("--record-limit", o.record_limit, "MiB that the records of a rank may take")
      ->capture_default_str();
  app.add_flag("--record-newest", o.record_newest,
               "at this limit remove the oldest recorded steps, instead of dropping new ones; "
               "always so with --on-signal and --trigger-file");
}

constexpr int64_t kMostSteps = 1'000'000'000'000;              // many years of them
constexpr int64_t kLongestTimeout = 86'400;                    // a day
constexpr int64_t kLargestRecord = 4096;                       // MiB; what read_spool() reads
constexpr int64_t kMostProcesses = 1024, kMostThreads = 1024;  // of one machine

void at_least(const char* flag, int64_t value, int64_t minimum) {
  if (value < minimum) {
    throw UsageError(fmt::format("{} {}: expected at least {}", flag, value, minimum));
  }
}

void at_most(const char* flag, int64_t value, int64_t maximum) {
  if (value > maximum) {
    throw UsageError(fmt::format("{} {}: expected at most {}", flag, value, maximum));
  }
}

void finite(const char* flag, double value, bool may_be_zero) {
  if (!std::isfinite(value) || value < 0 || (value == 0 && !may_be_zero)) {
    throw UsageError(
        fmt::format("{} {}: expected a finite number {} 0", flag, value, may_be_zero ? ">=" : ">"));
  }
}

void check_world(const RunOptions& o) {
  const Backend backend = backend_of(o);
  at_least("--nproc", o.nproc, 1);
  at_most("--nproc", o.nproc, kMostProcesses);
  at_least("--threads", o.threads, 1);
  at_most("--threads", o.threads, kMostThreads);
  at_least("--on-signal", o.on_signal, 0);
  at_least("--record-limit", o.record_limit, 1);
  at_most("--record-limit", o.record_limit, kLargestRecord);
  at_least("--timeout", o.timeout, 1);
  at_most("--timeout", o.timeout, kLongestTimeout);
  if (backend == Backend::kEmulated) {
    if (!o.world_size) {
      throw UsageError(
          "--backend emulated needs --world-size, the number of ranks of the emulated world");
    }
    at_least("--world-size", *o.world_size, 1);
    at_most("--world-size", *o.world_size, plan::kMostRanks);
    if (o.rank < 0 || o.rank >= *o.world_size) {
      throw UsageError(fmt::format("--rank {}: expected 0 to {} (--world-size {})", o.rank,
                                   *o.world_size - 1, *o.world_size));
    }
    if (!o.save.empty() || !o.resume.empty()) {
      throw UsageError(
          std::string(o.save.empty() ? "--resume" : "--save") +
          ": with --backend emulated the parameters have no meaning, because each collective "
          "returns this rank's own data; leave one of the two out");
    }
    return;
  }
  if (o.world_size || o.rank != 0 || !o.hardware.empty()) {
    const char* flag = o.world_size ? "--world-size" : (o.rank != 0 ? "--rank" : "--hardware");
    throw UsageError(
        fmt::format("{} needs --backend emulated; otherwise the number of ranks is --nproc", flag));
  }
  if (backend == Backend::kNccl && o.device != Device::kCuda) {
    throw UsageError("--backend nccl needs --device cuda");
  }
  if (backend == Backend::kGloo && o.device != Device::kCpu) {
    throw UsageError("--backend gloo needs --device cpu; with --device cuda use nccl or emulated");
  }
}

void check_saving(const RunOptions& o) {
  at_least("--save-every", o.save_every, 0);
  at_least("--keep", o.keep.value_or(1), 1);
  const char* flag = o.save_every > 0                        ? "--save-every"
                     : o.keep                                ? "--keep"
                     : o.save_async                          ? "--save-async"
                     : o.save_format != SaveFormat::kSharded ? "--save-format"
                                                             : nullptr;
  if (flag != nullptr && o.save.empty()) {
    throw UsageError(fmt::format("{} needs --save, the directory of checkpoints", flag));
  }
  if (o.save_format == SaveFormat::kFull && (o.save_every > 0 || o.keep || o.save_async)) {
    throw UsageError(
        fmt::format("{} needs --save-format sharded: a full model is saved at the end only", flag));
  }
}

nlohmann::json text_or_null(const std::string& text) {
  return text.empty() ? nlohmann::json(nullptr) : nlohmann::json(text);
}

}  // namespace

void add_plan_options(CLI::App& app, RunOptions& o) {
  app.add_option("--model", o.model,
                 "directory with config.json (and safetensors), or a config.json")
      ->required();
  CLI::Option* plan = app.add_option("--plan", o.plan, "plan file (shardlens docs plan)");
  app.add_option("--strategy", o.strategy,
                 "full_shard, shard_grad_op, no_shard, hybrid_shard or replicate")
      ->capture_default_str()
      ->excludes(plan);
  app.add_option("--mesh", o.mesh, "RxS, replicas of shards, or axis=size,…");
}

void add_step_options(CLI::App& app, RunOptions& o) {
  app.add_option("--batch", o.step.batch, "samples per rank and microbatch")->capture_default_str();
  app.add_option("--seq", o.step.seq, "tokens per sample")->option_text("INT [64]");
  app.add_option("--accumulate", o.step.accumulate, "microbatches per step")->capture_default_str();
  app.add_flag("!--no-sync", o.step.sync_every_microbatch,
               "with --accumulate: only the last microbatch reduces gradients");
  app.add_option("--optimizer", o.step.optimizer, "adamw or sgd")
      ->transform(CLI::CheckedTransformer(kOptimizers))
      ->option_text("adamw|sgd [adamw]");
  app.add_option("--momentum", o.step.momentum, "momentum of sgd")->capture_default_str();
  add_precision_option(app, o);
}

void add_process_options(CLI::App& app, RunOptions& o) {
  app.add_option("--nproc", o.nproc, "processes to start")->capture_default_str();
  app.add_option("--device", o.device, "cpu or cuda")
      ->transform(CLI::CheckedTransformer(kDevices))
      ->option_text("cpu|cuda [cpu]");
  app.add_option("--threads", o.threads, "operator threads per process")->capture_default_str();
}

void add_precision_option(CLI::App& app, RunOptions& o) {
  app.add_option("--precision", o.precision,
                 "fp32, or bf16 or fp16 parameters with fp32 reduction and master weights")
      ->transform(CLI::CheckedTransformer(kPrecisions))
      ->option_text("fp32|bf16|fp16 [fp32]");
}

void add_run_options(CLI::App& app, RunOptions& options) {
  add_plan_options(app, options);
  add_data_options(app, options);
  add_process_options(app, options);
  add_world_options(app, options);
  add_step_options(app, options);
  add_training_options(app, options);
}

std::optional<ExitCode> parse_worker_flags(CLI::App& app, int argc, char** argv) {
  if (parse_flags(app, app.get_name(), {argv + 1, argv + argc})) {
    return std::nullopt;
  }
  app.exit(CLI::CallForHelp());  // prints the help
  return ExitCode::kOk;
}

void check_sizes(const plan::StepSettings& step) {
  at_least("--batch", step.batch, 1);
  at_least("--seq", step.seq.value_or(1), 1);
  at_least("--accumulate", step.accumulate, 1);
  const int64_t seq = step.seq.value_or(1);
  at_most("--accumulate", step.accumulate, plan::kMostMicrobatches);
  at_most("--batch", step.batch, plan::kMostSamples);
  at_most("--seq", seq, plan::kLongestSample);
  if (step.batch * seq > plan::kMostTokens) {
    throw UsageError(fmt::format("--batch {} of --seq {}: expected at most {} tokens", step.batch,
                                 seq, plan::kMostTokens));
  }
  finite("--expert-skew", step.expert_skew, true);
  finite("--momentum", step.momentum, true);
}

void check_step(const plan::StepSettings& step) {
  check_sizes(step);
  if (!step.sync_every_microbatch && step.accumulate == 1) {
    throw UsageError(
        "--no-sync needs --accumulate 2 or more: with one microbatch there is nothing to skip");
  }
}

void check(const RunOptions& o) {
  check_world(o);
  at_least("--steps", o.steps, 1);
  at_most("--steps", o.steps, kMostSteps);
  at_least("--warmup", o.warmup, 0);
  if (o.warmup >= o.steps) {
    throw UsageError(
        fmt::format("--warmup {}: expected less than --steps {}; otherwise no step is recorded",
                    o.warmup, o.steps));
  }
  if (o.one_epoch && backend_of(o) == Backend::kEmulated) {
    throw UsageError(
        "--one-epoch: an emulated run has one rank, whose data cannot run out before the others'");
  }
  check_step(o.step);
  finite("--lr", o.lr, true);
  finite("--weight-decay", o.weight_decay, true);
  if (o.step.clip) {
    finite("--clip", *o.step.clip, false);
  }
  if (!(o.norm_type > 0)) {
    throw UsageError(fmt::format("--norm-type {}: expected a number > 0, or inf", o.norm_type));
  }
  finite("--loss-scale", o.loss_scale, false);
  at_least("--loss-scale-interval", o.loss_scale_interval, 1);
  check_saving(o);
}

Backend backend_of(const RunOptions& options) {
  return options.backend.value_or(options.device == Device::kCuda ? Backend::kNccl
                                                                  : Backend::kGloo);
}

int64_t world_size_of(const RunOptions& options) {
  return backend_of(options) == Backend::kEmulated ? options.world_size.value_or(1) : options.nproc;
}

std::string hardware_of(const RunOptions& options) {
  return options.hardware.empty() ? "ab:5000:inf" : options.hardware;
}

std::string name_of(Device device) {
  return key_of(kDevices, device);
}
std::string name_of(Backend backend) {
  return key_of(kBackends, backend);
}
std::string name_of(Precision precision) {
  return key_of(kPrecisions, precision);
}
std::string name_of(SaveFormat format) {
  return key_of(kSaveFormats, format);
}

std::vector<std::string> to_arguments(const RunOptions& o) {
  const RunOptions defaults;
  std::vector<std::string> out;
  const auto add = [&out](const char* flag, const auto& value, const auto& usual) {
    if (value != usual) {
      out.insert(out.end(), {flag, fmt::format("{}", value)});
    }
  };
  const auto add_path = [&out](const char* flag, const std::filesystem::path& path) {
    if (!path.empty()) {
      out.insert(out.end(), {flag, path.string()});
    }
  };
  add_path("--model", o.model);
  add_path("--tokens", o.tokens);
  add_path("--out", o.out);
  add_path("--plan", o.plan);
  if (o.plan.empty()) {
    add("--strategy", o.strategy, defaults.strategy);
  }
  add("--mesh", o.mesh, defaults.mesh);
  add("--nproc", o.nproc, defaults.nproc);
  add("--device", name_of(o.device), name_of(defaults.device));
  if (o.backend) {
    out.insert(out.end(), {"--backend", name_of(*o.backend)});
  }
  if (o.world_size) {
    out.insert(out.end(), {"--world-size", fmt::format("{}", *o.world_size)});
  }
  add("--rank", o.rank, defaults.rank);
  add("--hardware", o.hardware, defaults.hardware);
  add("--steps", o.steps, defaults.steps);
  add("--warmup", o.warmup, defaults.warmup);
  add("--batch", o.step.batch, defaults.step.batch);
  add("--seq", *o.step.seq, *defaults.step.seq);
  add("--accumulate", o.step.accumulate, defaults.step.accumulate);
  add("--optimizer", std::string(plan::name_of(o.step.optimizer)),
      std::string(plan::name_of(defaults.step.optimizer)));
  add("--lr", o.lr, defaults.lr);
  add("--weight-decay", o.weight_decay, defaults.weight_decay);
  add("--momentum", o.step.momentum, defaults.step.momentum);
  if (o.step.clip) {
    out.insert(out.end(), {"--clip", fmt::format("{}", *o.step.clip)});
  }
  add("--norm-type", o.norm_type, defaults.norm_type);
  add("--loss-scale", o.loss_scale, defaults.loss_scale);
  add("--loss-scale-interval", o.loss_scale_interval, defaults.loss_scale_interval);
  add("--precision", name_of(o.precision), name_of(defaults.precision));
  add("--seed", o.seed, defaults.seed);
  add_path("--save", o.save);
  add("--save-format", name_of(o.save_format), name_of(defaults.save_format));
  add("--save-every", o.save_every, defaults.save_every);
  if (o.keep) {
    out.insert(out.end(), {"--keep", fmt::format("{}", *o.keep)});
  }
  add_path("--resume", o.resume);
  add_path("--trigger-file", o.trigger_file);
  add("--on-signal", o.on_signal, defaults.on_signal);
  add("--record-limit", o.record_limit, defaults.record_limit);
  add("--threads", o.threads, defaults.threads);
  add("--timeout", o.timeout, defaults.timeout);
  if (!o.step.sync_every_microbatch) {
    out.emplace_back("--no-sync");
  }
  if (o.force) {
    out.emplace_back("--force");
  }
  if (o.force_collectives) {
    out.emplace_back("--force-collectives");
  }
  if (o.record_newest) {
    out.emplace_back("--record-newest");
  }
  if (o.one_epoch) {
    out.emplace_back("--one-epoch");
  }
  if (o.save_async) {
    out.emplace_back("--save-async");
  }
  if (o.host_name) {
    out.emplace_back("--host-name");
  }
  return out;
}

std::string to_json(const RunOptions& o) {
  nlohmann::ordered_json out;
  out["model"] = o.model.string();
  out["tokens"] = o.tokens.string();
  out["plan"] = text_or_null(o.plan.string());
  out["strategy"] = o.plan.empty() ? nlohmann::json(o.strategy) : nlohmann::json(nullptr);
  out["mesh"] = text_or_null(o.mesh);
  out["nproc"] = backend_of(o) == Backend::kEmulated ? 1 : o.nproc;
  out["device"] = name_of(o.device);
  out["backend"] = name_of(backend_of(o));
  out["world_size"] = world_size_of(o);
  if (backend_of(o) == Backend::kEmulated) {
    out["rank"] = o.rank;
    out["hardware"] = hardware_of(o);
  }
  out["threads"] = o.threads;
  out["force_collectives"] = o.force_collectives;
  out["steps"] = o.steps;
  out["warmup"] = o.warmup;
  if (o.one_epoch) {
    out["one_epoch"] = true;
  }
  out["batch"] = o.step.batch;
  out["seq"] = *o.step.seq;
  out["accumulate"] = o.step.accumulate;
  out["no_sync"] = !o.step.sync_every_microbatch;
  out["optimizer"] = std::string(plan::name_of(o.step.optimizer));
  out["lr"] = o.lr;
  out["weight_decay"] = o.weight_decay;
  if (o.step.optimizer == plan::Optimizer::kSgd) {
    out["momentum"] = o.step.momentum;
  }
  out["clip"] = o.step.clip ? nlohmann::json(*o.step.clip) : nlohmann::json(nullptr);
  out["norm_type"] = std::isinf(o.norm_type) ? nlohmann::json("inf") : nlohmann::json(o.norm_type);
  out["precision"] = name_of(o.precision);
  if (o.precision == Precision::kFp16) {
    out["loss_scale"] = o.loss_scale;
    out["loss_scale_interval"] = o.loss_scale_interval;
  }
  out["seed"] = o.seed;
  out["save"] = text_or_null(o.save.string());
  if (!o.save.empty()) {
    out["save_format"] = name_of(o.save_format);
    out["save_every"] = o.save_every;
    out["save_async"] = o.save_async;
    out["keep"] = o.keep ? nlohmann::json(*o.keep) : nlohmann::json(nullptr);
  }
  out["resume"] = text_or_null(o.resume.string());
  out["trigger_file"] = text_or_null(o.trigger_file.string());
  out["on_signal"] = o.on_signal;
  out["record_limit"] = o.record_limit;
  out["record_newest"] = o.record_newest;
  return plan::json_text(out);
}

}  // namespace shardlens::cli
