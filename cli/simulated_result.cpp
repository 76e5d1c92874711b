#include "cli/simulated_result.h"

#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/atomic_file.h"
#include "core/base/format_bytes.h"
#include "core/plan/json_reader.h"
#include "profiler/report/table.h"
#include "profiler/trace/kineto_writer.h"

#include "cli/capture_directory.h"
#include "cli/output.h"

namespace shardlens::cli {
namespace {

constexpr size_t kAliveShown = 8;

}  // namespace

std::string simulated_json(const SimulatedResult& result) {
  nlohmann::ordered_json out;
  const sim::Busy& busy = result.prediction.busy;
  out["schema"] = 1;
  out["step_ns"] = result.prediction.step.duration;
  out["compute_ns"] = busy.compute;
  out["exposed_comm_ns"] = busy.exposed_comm;
  out["exposed_copy_ns"] = busy.exposed_copy;
  out["idle_ns"] = busy.idle;
  out["tokens_per_s"] = result.prediction.tokens_per_s;
  out["mfu"] = result.mfu ? nlohmann::ordered_json(*result.mfu) : nlohmann::ordered_json();
  out["peak_allocated_bytes"] = result.prediction.memory.peak_allocated;
  out["peak_reserved_bytes"] = result.prediction.memory.peak_reserved;
  out["fits"] = result.prediction.memory.fits;
  for (int i = 0; i < sim::kMemoryCategoryCount; ++i) {
    out["memory"][std::string(name_of(static_cast<sim::MemoryCategory>(i)))] =
        result.prediction.memory.at_peak[static_cast<size_t>(i)];
  }
  if (result.baseline) {
    out["baseline"] = {{"measured_step_ns", result.baseline->measured},
                       {"simulated_step_ns", result.baseline->simulated},
                       {"error", result.baseline->error()}};
  }
  return out.dump(1) + "\n";
}

void print_simulated(const SimulatedResult& result) {
  const sim::Busy& busy = result.prediction.busy;
  const auto share = [&result](Nanoseconds part) {
    return report::format_percent(static_cast<double>(part) /
                                  static_cast<double>(result.prediction.step.duration));
  };
  if (result.baseline) {
    write_stdout(fmt::format(
        "{}  {} measured, {} simulated: {:+.1f} % (its own plan, {} step{} of {})\n\n",
        bold("baseline"), report::format_duration(result.baseline->measured),
        report::format_duration(result.baseline->simulated), result.baseline->error() * 100,
        result.recorded_steps, result.recorded_steps == 1 ? "" : "s", result.recorded));
  }
  write_stdout(fmt::format("{}  {} on {}, {} ranks\n", bold("step"),
                           report::format_duration(result.prediction.step.duration), result.machine,
                           result.plan.world_size));
  report::Table time({{"time", report::Align::kLeft}, {"per step"}, {"share"}});
  for (const auto& [name, part] : {std::pair{"compute", busy.compute},
                                   {"exposed communication", busy.exposed_comm},
                                   {"exposed copies", busy.exposed_copy},
                                   {"idle", busy.idle}}) {
    time.row({name, report::format_duration(part), share(part)});
  }
  write_stdout(time.render(style_of_stdout()));
  // A trace whose first embedding has no shapes does not tell how many tokens a step has.
  const double tokens = result.prediction.tokens_per_s;
  write_stdout(fmt::format("communication {}, of it hidden {}{}{}\n\n",
                           report::format_duration(busy.communication),
                           report::format_duration(busy.overlap),
                           tokens > 0 ? fmt::format("; {:.0f} tokens/s", tokens) : "",
                           result.mfu ? ", MFU " + report::format_percent(*result.mfu) : ""));
  const std::string verdict = result.memory == 0 ? "; the machine's memory is not known"
                              : result.prediction.memory.fits
                                  ? fmt::format(" of {}: fits", format_bytes(result.memory))
                                  : fmt::format(
                                        " of {}: does not fit; figures are those until "
                                        "it was out of memory",
                                        format_bytes(result.memory));
  write_stdout(fmt::format("{}  peak {} allocated, {} reserved{}\n", bold("memory"),
                           format_bytes(result.prediction.memory.peak_allocated),
                           format_bytes(result.prediction.memory.peak_reserved), verdict));
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
    const std::string unit = row.unit == kNoUnit ? "" : result.plan.units[row.unit].fqn;
    alive.row({row.what, row.unit == 0 ? "(root)" : unit, std::string(name_of(row.category)),
               format_bytes(row.bytes)});
  }
  if (rest > 0) {
    alive.row({fmt::format("{} more", result.prediction.memory.alive.size() - kAliveShown), "", "",
               format_bytes(rest)});
  }
  write_stdout(alive.render(style_of_stdout()));
}

void write_simulated(const SimulatedResult& result, const std::filesystem::path& out) {
  const std::string config = result.config.empty() ? "" : plan::read_text_file(result.config);
  prepare_capture_directory(out);
  const plan::ResolvedPlan& plan = result.plan;
  write_file_atomically(out / "plan.json", plan::to_json(plan.plan));
  write_file_atomically(out / "workload.json", plan::to_json(result.workload, plan));
  if (!config.empty()) {
    write_file_atomically(out / "config.json", config);
  }
  nlohmann::ordered_json about;
  about["schema"] = 1;
  about["simulated"] = true;
  about["hardware"] = result.machine;
  about["options"] = {{"model", result.config.string()}, {"world_size", plan.world_size},
                      {"batch", result.workload.batch},  {"seq", result.workload.seq},
                      {"accumulate", result.accumulate}, {"no_sync", result.no_sync}};
  write_file_atomically(out / "run.json", about.dump(2) + "\n");
  const nlohmann::ordered_json metrics{
      {"step", sim::kSteadyStep - 1},
      {"step_ms", static_cast<double>(result.prediction.step.duration) / 1e6},
      {"tokens_per_s", result.prediction.tokens_per_s}};
  write_file_atomically(out / "metrics.jsonl", metrics.dump() + "\n");
  sim::SimulatedRunOptions traces;
  traces.first_step = sim::kSteadyStep - 1;
  traces.device_name = result.machine;
  traces.host = result.host;
  for (int64_t rank = 0; rank < plan.world_size; ++rank) {
    trace::write_kineto(sim::simulated_trace(result.workload, plan, result.prediction.planned,
                                             result.prediction.step, rank, traces),
                        out / fmt::format("rank{}.pt.trace.json.gz", rank));
  }
}

}  // namespace shardlens::cli
