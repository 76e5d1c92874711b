#include "cli/simulate_command.h"

#include <charconv>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/atomic_file.h"
#include "core/base/error.h"
#include "core/plan/json_reader.h"
#include "profiler/report/table.h"
#include "profiler/trace/kineto_writer.h"
#include "sim/hardware/stacks.h"
#include "sim/predict/predict.h"

#include "cli/capture_directory.h"
#include "cli/output.h"
#include "cli/prepared_run.h"
#include "cli/run_options.h"

namespace shardlens::cli {
namespace {

constexpr size_t kAliveShown = 8;

struct SimulateOptions {
  RunOptions run;
  std::string ranks = "one", stack;
  std::vector<std::string> slow_ranks;
  sim::HostMode host = sim::HostMode::kAhead;
  bool waits_for_loss = false;
  std::optional<double> operator_us, action_us;
  bool json = false;
};

// Everything that is said about one simulated step.
struct Simulated {
  PreparedRun prepared;
  plan::Workload workload;
  sim::HardwareSpec hardware;
  sim::Prediction prediction;
  double mfu = 0;
};

void check_options(const SimulateOptions& options) {
  if (options.run.hardware.starts_with("ab:")) {
    throw UsageError(
        "--hardware ab:…: it says how long collectives take, but not how long a GPU computes; use "
        "a spec's name or a spec file");
  }
  if (options.ranks != "one" && options.ranks != "all") {
    throw UsageError(fmt::format("--ranks: expected one or all, found '{}'", options.ranks));
  }
  for (const auto& [flag, value] : {std::pair{"--batch", options.run.batch},
                                    {"--seq", options.run.seq},
                                    {"--accumulate", options.run.accumulate},
                                    {"--world-size", options.run.world_size.value_or(1)}}) {
    if (value < 1) {
      throw UsageError(fmt::format("{} {}: expected at least 1", flag, value));
    }
  }
}

// "R:FACTOR" of --slow-rank.
std::vector<double> slowdowns(const SimulateOptions& options, int64_t ranks) {
  if (options.ranks == "one" && options.slow_ranks.empty()) {
    return {};
  }
  std::vector<double> factors(static_cast<size_t>(ranks), 1.0);
  for (const std::string& text : options.slow_ranks) {
    const size_t colon = text.find(':');
    int64_t rank = -1;
    double factor = 0;
    const char* const end = text.data() + text.size();
    const bool reads =
        colon != std::string::npos &&
        std::from_chars(text.data(), text.data() + colon, rank).ptr == text.data() + colon &&
        std::from_chars(text.data() + colon + 1, end, factor).ptr == end;
    if (!reads || rank < 0 || rank >= ranks || !(factor >= 1 && factor <= 1000)) {
      throw UsageError(fmt::format(
          "--slow-rank '{}': expected RANK:FACTOR, such as 3:1.2, with a rank below {} and a "
          "factor from 1 to 1000",
          text, ranks));
    }
    factors[static_cast<size_t>(rank)] = factor;
  }
  return factors;
}

// sgd updates with one moment, or none, where the workload has AdamW.
void apply_optimizer(const RunOptions& run, plan::Workload& workload) {
  if (run.optimizer != Optimizer::kSgd) {
    return;
  }
  for (plan::Operator& op : workload.operators) {
    if (op.phase == plan::Phase::kOptimizer) {
      const Bytes each = op.read / 4;  // AdamW reads parameter, gradient and two moments
      op.name = "aten::_fused_sgd_";
      op.read = (run.momentum > 0 ? 3 : 2) * each;
      op.written = (run.momentum > 0 ? 2 : 1) * each;
    }
  }
}

Simulated simulate(const SimulateOptions& options) {
  const RunOptions& run = options.run;
  Simulated out;
  out.hardware = sim::load_hardware(run.hardware);
  if (!options.stack.empty()) {
    out.hardware = sim::under_stack(out.hardware, options.stack);
  }
  out.hardware.operator_us = options.operator_us.value_or(out.hardware.operator_us);
  out.hardware.action_us = options.action_us.value_or(out.hardware.action_us);
  const int64_t ranks = run.world_size.value_or(out.hardware.gpus);
  out.prepared = resolve_run(run, ranks);
  out.workload = plan::step_workload(out.prepared.config, out.prepared.plan, run.batch, run.seq);
  apply_optimizer(run, out.workload);
  sim::RunSettings settings;
  settings.accumulate = run.accumulate;
  settings.sync_every_microbatch = !run.no_sync;
  settings.optimizer_states = run.optimizer == Optimizer::kAdamW ? 2 : run.momentum > 0 ? 1 : 0;
  settings.list_alive = !options.json;
  settings.simulation.keep_times = !run.out.empty();
  settings.simulation.host = options.host;
  settings.simulation.waits_for_loss = options.waits_for_loss;
  settings.simulation.rank_slowdown = slowdowns(options, ranks);
  out.prediction = sim::predict(out.workload, out.prepared.plan, out.hardware, settings);
  out.mfu = sim::model_flops_utilization(out.prepared.config, out.prepared.plan, out.hardware,
                                         run.seq, out.prediction.tokens_per_s);
  return out;
}

std::string json_text(const Simulated& result) {
  nlohmann::ordered_json out;
  const sim::Busy& busy = result.prediction.busy;
  out["schema"] = 1;
  out["step_ns"] = result.prediction.step.duration;
  out["compute_ns"] = busy.compute;
  out["exposed_comm_ns"] = busy.exposed_comm;
  out["exposed_copy_ns"] = busy.exposed_copy;
  out["idle_ns"] = busy.idle;
  out["tokens_per_s"] = result.prediction.tokens_per_s;
  out["mfu"] = result.mfu;
  out["peak_allocated_bytes"] = result.prediction.memory.peak_allocated;
  out["peak_reserved_bytes"] = result.prediction.memory.peak_reserved;
  out["fits"] = result.prediction.memory.fits;
  for (int i = 0; i < sim::kMemoryCategoryCount; ++i) {
    out["memory"][std::string(name_of(static_cast<sim::MemoryCategory>(i)))] =
        result.prediction.memory.at_peak[static_cast<size_t>(i)];
  }
  return out.dump(1) + "\n";
}

void print_text(const Simulated& result) {
  const sim::Busy& busy = result.prediction.busy;
  const auto share = [&result](Nanoseconds part) {
    return report::format_percent(static_cast<double>(part) /
                                  static_cast<double>(result.prediction.step.duration));
  };
  write_stdout(fmt::format("{}  {} on {}, {} ranks\n", bold("step"),
                           report::format_duration(result.prediction.step.duration),
                           result.hardware.name, result.prepared.plan.world_size));
  report::Table time({{"time", report::Align::kLeft}, {"per step"}, {"share"}});
  for (const auto& [name, part] : {std::pair{"compute", busy.compute},
                                   {"exposed communication", busy.exposed_comm},
                                   {"exposed copies", busy.exposed_copy},
                                   {"idle", busy.idle}}) {
    time.row({name, report::format_duration(part), share(part)});
  }
  write_stdout(time.render(style_of_stdout()));
  write_stdout(fmt::format("communication {}, of it hidden {}; {:.0f} tokens/s, MFU {}\n\n",
                           report::format_duration(busy.communication),
                           report::format_duration(busy.overlap), result.prediction.tokens_per_s,
                           report::format_percent(result.mfu)));
  write_stdout(fmt::format("{}  peak {} allocated, {} reserved of {}: {}\n", bold("memory"),
                           report::format_bytes(result.prediction.memory.peak_allocated),
                           report::format_bytes(result.prediction.memory.peak_reserved),
                           report::format_bytes(result.hardware.gpu.memory),
                           result.prediction.memory.fits
                               ? "fits"
                               : "does not fit; figures are those until it was out of memory"));
  report::Table alive({{"alive at the peak", report::Align::kLeft},
                       {"unit", report::Align::kLeft},
                       {"category", report::Align::kLeft},
                       {"bytes"}});
  Bytes rest = 0;
  for (size_t i = 0; i < result.prediction.memory.alive.size(); ++i) {
    const sim::AliveAtPeak& row = result.prediction.memory.alive[i];
    if (i >= kAliveShown) {
      rest += row.bytes;
      continue;
    }
    const std::string unit = row.unit == kNoUnit ? "" : result.prepared.plan.units[row.unit].fqn;
    alive.row({row.what, row.unit == 0 ? "(root)" : unit, std::string(name_of(row.category)),
               report::format_bytes(row.bytes)});
  }
  if (rest > 0) {
    alive.row({fmt::format("{} more", result.prediction.memory.alive.size() - kAliveShown), "", "",
               report::format_bytes(rest)});
  }
  write_stdout(alive.render(style_of_stdout()));
}

// A capture directory that analyze reads.
void write_directory(const SimulateOptions& options, const Simulated& result) {
  const RunOptions& run = options.run;
  const std::filesystem::path& out = run.out;
  const std::string config = plan::read_text_file(result.prepared.config.source);
  prepare_capture_directory(out);
  const plan::ResolvedPlan& plan = result.prepared.plan;
  write_file_atomically(out / "plan.json", plan::to_json(plan.plan));
  write_file_atomically(out / "workload.json", plan::to_json(result.workload, plan));
  write_file_atomically(out / "config.json", config);
  nlohmann::ordered_json about;
  about["schema"] = 1;
  about["simulated"] = true;
  about["hardware"] = result.hardware.name;
  about["options"] = {{"model", run.model.string()},  {"world_size", plan.world_size},
                      {"batch", run.batch},           {"seq", run.seq},
                      {"accumulate", run.accumulate}, {"no_sync", run.no_sync}};
  write_file_atomically(out / "run.json", about.dump(2) + "\n");
  const nlohmann::ordered_json metrics{
      {"step", sim::kSteadyStep - 1},
      {"step_ms", static_cast<double>(result.prediction.step.duration) / 1e6},
      {"tokens_per_s", result.prediction.tokens_per_s}};
  write_file_atomically(out / "metrics.jsonl", metrics.dump() + "\n");
  sim::SimulatedRunOptions traces;
  traces.host = options.host;
  traces.first_step = sim::kSteadyStep - 1;
  traces.device_name = result.hardware.gpu.name;
  for (int64_t rank = 0; rank < plan.world_size; ++rank) {
    trace::write_kineto(sim::simulated_trace(result.workload, plan, result.prediction.planned,
                                             result.prediction.step, rank, traces),
                        out / fmt::format("rank{}.pt.trace.json.gz", rank));
  }
}

ExitCode run(const SimulateOptions& options) {
  check_options(options);
  if (!options.run.out.empty()) {
    check_capture_directory(options.run.out);
  }
  const Simulated result = simulate(options);
  if (!options.run.out.empty()) {
    write_directory(options, result);
    fmt::print(stderr, "simulated {} ranks in {}; next: shardlens analyze {}\n",
               result.prepared.plan.world_size, options.run.out.string(), options.run.out.string());
  }
  if (options.json) {
    write_stdout(json_text(result));
  } else {
    print_text(result);
  }
  return ExitCode::kOk;
}

}  // namespace

Action add_simulate_command(CLI::App& app) {
  const auto options = std::make_shared<SimulateOptions>();
  RunOptions& run_options = options->run;
  add_plan_options(app, run_options);
  app.add_option("--hardware", run_options.hardware,
                 "8xA100-40, 8xA100-80, 8xH100, 8xH200, 8xB200, 4xPCIe, or a spec file")
      ->required()
      ->option_text("SPEC (required)");
  app.add_option("--stack", options->stack,
                 "constants fitted to published runs of a software stack (docs/simulator.md)");
  app.add_option("--world-size", run_options.world_size, "ranks [the spec's GPUs]");
  add_step_options(app, run_options);
  app.add_option("--ranks", options->ranks, "all: simulate each rank [one: they are alike]")
      ->option_text("one|all [one]");
  app.add_option("--slow-rank", options->slow_ranks,
                 "R:FACTOR: rank R computes FACTOR times as long; may be repeated")
      ->option_text("R:FACTOR");
  static const std::map<std::string, sim::HostMode> kHosts{{"ahead", sim::HostMode::kAhead},
                                                           {"compute", sim::HostMode::kCompute}};
  app.add_option(
         "--host", options->host,
         "ahead: issues and goes on, as on CUDA; compute: does the work itself, as on a CPU")
      ->transform(CLI::CheckedTransformer(kHosts))
      ->option_text("ahead|compute [ahead]");
  app.add_option("--operator-us", options->operator_us,
                 "the host's cost of an operator [the spec's]")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--action-us", options->action_us,
                 "the host's cost of an action of the schedule [the spec's]")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--waits-for-loss", options->waits_for_loss,
               "the training loop reads the loss before it calls backward");
  app.add_option("--out", run_options.out, "write a capture directory that analyze reads");
  app.add_flag("--json", options->json, "machine-readable output");
  return [options] { return run(*options); };
}

}  // namespace shardlens::cli
