#include "cli/results/simulated_result.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/format_bytes.h"
#include "core/base/show.h"
#include "core/base/standard_output.h"
#include "core/files/atomic_file.h"
#include "core/json/json_dump.h"
#include "core/plan/mesh_sizes.h"
#include "core/schedule/planned/plan_lints.h"
#include "profiler/report/figures_json.h"
#include "profiler/report/findings_text.h"
#include "profiler/report/table.h"
#include "profiler/trace/kineto/kineto_writer.h"
#include "sim/scenario/prediction_json.h"
#include "sim/scenario/uncertainty.h"
#include "sim/scenario/uneven_ranks.h"

#include "cli/capture/capture_directory.h"
#include "cli/results/output.h"
#include "cli/results/peak_by_unit.h"
#include "cli/results/plan_lints_text.h"

namespace shardlens::cli {
namespace {

constexpr size_t kAliveShown = 8;

// The software that the figures assume.
Shown machine_text(const SimulatedResult& result) {
  if (!result.stack || !result.bare) {
    return Literal(
        "bare hardware: no constants of a software stack (efficiency of kernels, host, power "
        "limit); real steps take longer\n");
  }
  const double tokens = result.bare->tokens_per_s;
  Shown out = show("under {}; the bare hardware: {}{}\n", result.stack->text(),
                   report::format_duration(result.bare->step.duration),
                   tokens > 0 ? fmt::format(", {:.0f} {}/s", tokens,
                                            result.prediction.settings.seq ? "tokens" : "samples")
                              : "");
  if (plan::is_traced(result.prediction.priced.workload->program)) {
    out += Literal(
        "one graph for the model: a block's collectives begin a unit early, copies for them are "
        "where compute runs; no run of this program was fitted\n");
  }
  // Source  bench/published_one_node.py
  if (sim::has_experts(*result.prediction.priced.workload)) {
    out += Literal(
        "experts: no run with experts was fitted; published ones of torchtitan took 0.8 to 1.3 "
        "times as long as predicted, so the interval is wider\n");
  }
  if (result.prediction.priced.plan->mesh.size(mesh::kContext) > 1) {
    out += Literal(
        "context: no run with a divided context was fitted; published ones took 0.9 to 1.2 times "
        "as long as predicted, so the interval is wider\n");
  }
  return out;
}

// Alignment matters to NCCL, so only on GPUs, whose memory is known.
std::vector<schedule::PlanLint> lints_of(const SimulatedResult& result) {
  const sim::Prediction& now = result.prediction;
  std::vector<schedule::PlanLint> out = schedule::plan_lints(*now.priced.plan, *now.priced.planned);
  std::erase_if(out, [&](const schedule::PlanLint& each) {
    return now.capacity == 0 && each.kind == schedule::PlanLintKind::kUnalignedMessages;
  });
  return out;
}

// Ranks with unequal work; nothing if all are alike.
Shown ranks_text(const sim::Prediction& prediction) {
  const std::vector<sim::UnevenRank> ranks = sim::uneven_ranks(prediction);
  if (ranks.empty()) {
    return {};
  }
  const bool measured = ranks.front().measured_wait.has_value();
  std::vector<report::Table::Column> columns{{"rank"}, {"compute"}, {"waits for later ranks"}};
  if (measured) {
    columns.push_back({"measured, own plan"});
  }
  columns.insert(columns.end(), {{"sent by all-to-alls"}, {"received"}});
  report::Table table(std::move(columns));
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const sim::UnevenRank& each = ranks[rank];
    std::vector<std::string> cells{std::to_string(rank), report::format_duration(each.compute),
                                   report::format_duration(each.waited)};
    if (measured) {
      cells.push_back(report::format_duration(*each.measured_wait));
    }
    cells.push_back(format_bytes(each.sent()));
    cells.push_back(format_bytes(each.received()));
    table.row(std::move(cells));
  }
  return table.render(style_of_stdout()) + Literal("\n");
}

}  // namespace

std::string simulated_json(const SimulatedResult& result) {
  nlohmann::ordered_json out{{"schema", 1}};
  out.update(sim::prediction_json(result.prediction));
  out["memory_by_unit"] = peak_by_unit_json(result.prediction);
  out["communication"] = report::communication_json(result.prediction.communication);
  out["lints"] = lints_json(lints_of(result));
  if (result.on_spec) {
    out.update(stack_json(result.stack));
    out["bare"] = nullptr;
    if (result.bare) {
      out["bare"] = {{"step_ns", result.bare->step.duration},
                     {"tokens_per_s", result.bare->tokens_per_s}};
    }
  }
  return plan::json_text(out, 1) + "\n";
}

void print_simulated(const SimulatedResult& result) {
  const sim::Prediction& now = result.prediction;
  const StepFigures& figures = now.figures;
  const auto share = [&figures](Nanoseconds part) {
    return report::format_percent(static_cast<double>(part) /
                                  static_cast<double>(figures.duration()));
  };
  if (now.baseline) {
    write_stdout("{}  {} measured, {} simulated: {:+.1f} % (its own plan, {})\n", bold("baseline"),
                 report::format_duration(now.baseline->measured),
                 report::format_duration(now.baseline->simulated), now.baseline->error() * 100,
                 now.baseline->measured_text(result.recorded));
    if (const std::string doubt = now.baseline->doubt_text(); !doubt.empty()) {
      write_stdout("{}\n", doubt);
    }
    write_stdout("\n");
  }
  write_stdout("{}  {} on {}, {} ranks\n", bold("step"),
               report::format_duration(figures.duration()), now.machine,
               now.priced.plan->world_size);
  if (now.interval) {
    const auto tokens = sim::tokens_interval(now);
    write_stdout("90 % from {} to {}{}\n", report::format_duration(now.interval->low),
                 report::format_duration(now.interval->high),
                 tokens ? fmt::format(", {:.0f} to {:.0f} {}/s", tokens->low, tokens->high,
                                      now.settings.seq ? "tokens" : "samples")
                        : "");
    if (result.few_steps && now.interval->high - now.interval->low > figures.duration() / 2) {
      write_stdout(
          "so wide because few recorded steps hardly show how much steps differ; record 8 or "
          "more\n");
    }
  }
  if (const std::string text = sim::far_extrapolations_text(now.extrapolated); !text.empty()) {
    write_stdout("priced beyond what was measured: {}\n", text);
  }
  if (result.on_spec) {
    write_stdout(machine_text(result));
  }
  report::Table time({{"time", report::Align::kLeft}, {"per step"}, {"share"}});
  for (const auto& [name, part] : {std::pair{"compute", figures.compute},
                                   {"exposed communication", figures.exposed_comm},
                                   {"exposed copies", figures.exposed_copy},
                                   {"idle", figures.idle}}) {
    time.row({name, report::format_duration(part), share(part)});
  }
  write_stdout(time.render(style_of_stdout()));
  // The number of tokens is unknown if the trace's first embedding has no shapes.
  const double tokens = now.tokens_per_s;
  const std::string_view counted = now.settings.seq ? "tokens" : "samples";
  write_stdout("communication {}, of it hidden {}{}{}\n\n", report::format_duration(figures.comm),
               report::format_duration(figures.overlap),
               tokens > 0 ? fmt::format("; {:.0f} {}/s", tokens, counted) : "",
               now.mfu ? ", MFU " + report::format_percent(*now.mfu) : "");
  if (!plan::divided_axis(now.priced.plan->plan.mesh).first.empty()) {
    write_stdout(report::communication_table(now.communication, style_of_stdout()));
    write_stdout("\n");
  }
  write_stdout(ranks_text(now));
  const std::string verdict = now.capacity == 0 ? "; the machine's memory size is unknown"
                              : now.memory.fits
                                  ? fmt::format(" of {}: fits", format_bytes(now.capacity))
                                  : fmt::format(
                                        " of {}: does not fit into the {} that PyTorch's "
                                        "allocator can reserve",
                                        format_bytes(now.capacity), format_bytes(now.available));
  write_stdout("{}  peak {} allocated, {} reserved{}\n", bold("memory"),
               format_bytes(now.memory.peak_allocated), format_bytes(now.memory.peak_reserved),
               verdict);
  if (const sim::OutsideMemory& outside = now.outside_memory; outside.total() > 0) {
    write_stdout("in addition {}: CUDA {}, NCCL {}, cuBLAS {}\n", format_bytes(outside.total()),
                 format_bytes(outside.context), format_bytes(outside.nccl),
                 format_bytes(outside.cublas));
  }
  report::Table alive({{"alive at the peak", report::Align::kLeft},
                       {"unit", report::Align::kLeft},
                       {"category", report::Align::kLeft},
                       {"bytes"}});
  Bytes rest = 0;
  for (size_t i = 0; i < now.memory.alive.size(); ++i) {
    const sim::AliveAtPeak& row = now.memory.alive[i];
    if (i >= kAliveShown) {
      rest += row.bytes;
      continue;
    }
    const std::string unit = row.unit == kNoUnit ? "" : now.priced.plan->units[row.unit].fqn;
    alive.row({row.what, row.unit == 0 ? "(root)" : unit, std::string(name_of(row.category)),
               format_bytes(row.bytes)});
  }
  if (rest > 0) {
    alive.row({fmt::format("{} more", now.memory.alive.size() - kAliveShown), "", "",
               format_bytes(rest)});
  }
  write_stdout(alive.render(style_of_stdout()));
  write_stdout("\n");
  write_stdout(peak_by_unit_text(now, style_of_stdout()));
  write_stdout(lints_text(lints_of(result), style_of_stdout()));
}

void write_simulated(const SimulatedResult& result, const std::filesystem::path& out, bool force) {
  const std::string config = copied_config(result.config);
  const CaptureDirectory directory = prepare_capture_directory(out, force);
  const sim::Prediction& now = result.prediction;
  const plan::ResolvedPlan& plan = *now.priced.plan;
  write_file_atomically(out / "plan.json", plan::to_json(plan.plan));
  write_file_atomically(out / "workload.json", plan::to_json(*now.priced.workload, plan));
  if (!config.empty()) {
    write_file_atomically(out / "config.json", config);
  }
  nlohmann::ordered_json about;
  about["schema"] = 1;
  about["capture"] = directory.identifier;
  about["simulated"] = true;
  about["hardware"] = now.machine;
  const plan::StepSettings& step = now.settings;
  about["options"] = {
      {"model", result.config.string()},
      {"world_size", plan.world_size},
      {"batch", step.batch},
      {"seq", now.priced.workload->seq * now.priced.plan->mesh.size(mesh::kContext)},
      {"accumulate", step.accumulate},
      {"no_sync", !step.sync_every_microbatch},
      {"optimizer", plan::name_of(step.optimizer)},
      {"optimizer_impl", plan::name_of(step.optimizer_impl)},
      {"expert_skew", step.expert_skew}};
  if (step.optimizer == plan::Optimizer::kSgd) {
    about["options"]["momentum"] = step.momentum;
  }
  if (step.software != plan::Software{}) {
    about["software"] = plan::software_json(step.software);
  }
  write_file_atomically(out / "run.json", plan::json_text(about, 2) + "\n");
  const nlohmann::ordered_json metrics{
      {"step", sim::kSteadyStep - 1},
      {"step_ms", static_cast<double>(now.figures.duration()) / 1e6},
      {"tokens_per_s", now.tokens_per_s}};
  write_file_atomically(out / "metrics.jsonl", metrics.dump() + "\n");
  for (int64_t rank = 0; rank < plan.world_size; ++rank) {
    trace::write_kineto(sim::predicted_trace(now, rank),
                        out / fmt::format("rank{}.pt.trace.json.gz", rank));
  }
}

}  // namespace shardlens::cli
