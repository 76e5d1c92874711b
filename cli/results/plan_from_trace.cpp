#include "cli/results/plan_from_trace.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/format_bytes.h"
#include "core/base/standard_output.h"
#include "core/files/atomic_file.h"
#include "core/files/output_folder.h"
#include "core/json/json_dump.h"
#include "core/plan/resolve.h"
#include "profiler/analysis/analyzed_run.h"
#include "profiler/analysis/recover/recovered_plan.h"
#include "profiler/report/table.h"
#include "profiler/trace/parallel_axes.h"
#include "profiler/trace/run.h"

#include "cli/capture/capture_lock.h"
#include "cli/results/output.h"
#include "cli/results/parameter_ranges.h"

namespace shardlens::cli {
namespace {

using analysis::RecoveredBucket;
using analysis::RecoveredPlan;
using analysis::RecoveredUnit;

std::string shown(const std::string& fqn) {
  return fqn.empty() ? "(root)" : fqn;
}

std::string dtype_name(const std::optional<DType>& dtype) {
  return dtype ? std::string(plan_name(*dtype)) : "";
}

std::string json_text(const RecoveredPlan& recovered) {
  using nlohmann::ordered_json;
  ordered_json out{
      {"schema", 1}, {"world_size", recovered.world_size}, {"names_units", recovered.names_units}};
  out["plan"] = ordered_json::parse(plan::to_json(recovered.plan));
  out["units"] = ordered_json::array();
  for (const RecoveredUnit& unit : recovered.units) {
    ordered_json one{{"fqn", unit.fqn}};
    one["padded_numel"] = unit.padded_numel < 0 ? ordered_json() : ordered_json(unit.padded_numel);
    one["gathered_bytes"] = unit.gathered_bytes;
    one["param_dtype"] =
        unit.param_dtype ? ordered_json(plan_name(*unit.param_dtype)) : ordered_json();
    one["reduce_dtype"] =
        unit.reduce_dtype ? ordered_json(plan_name(*unit.reduce_dtype)) : ordered_json();
    one["resharded_after_forward"] =
        unit.resharded ? ordered_json(*unit.resharded) : ordered_json();
    out["units"].push_back(std::move(one));
  }
  if (recovered.replicated()) {
    out["accumulate"] = recovered.accumulate;
    out["sync_every_microbatch"] = recovered.sync_every_microbatch;
    out["buckets"] = ordered_json::array();
    for (const RecoveredBucket& bucket : recovered.buckets) {
      out["buckets"].push_back(
          {{"numel", bucket.numel < 0 ? ordered_json() : ordered_json(bucket.numel)},
           {"bytes", bucket.bytes},
           {"dtype", bucket.dtype ? ordered_json(plan_name(*bucket.dtype)) : ordered_json()},
           {"gradients", bucket.gradients},
           {"modules", bucket.modules}});
    }
  }
  out["diagnostics"] = ordered_json::array();
  for (const trace::Diagnostic& d : recovered.diagnostics) {
    out["diagnostics"].push_back(
        {{"severity", trace::name_of(d.severity)}, {"message", d.message}, {"count", d.count}});
  }
  return plan::json_text(out, 1) + "\n";
}

std::string prefetch_words(const plan::Plan& plan) {
  const char* backward = !plan.backward_prefetch_lists.empty()                    ? "explicit lists"
                         : plan.backward_prefetch == plan::BackwardPrefetch::kPre ? "pre"
                         : plan.backward_prefetch == plan::BackwardPrefetch::kPost ? "post"
                                                                                   : "none";
  return fmt::format("prefetch in backward {}, in forward {}", backward,
                     !plan.forward_prefetch_lists.empty() ? "explicit lists"
                                                          : std::to_string(plan.forward_prefetch));
}

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) {
    out += (out.empty() ? "" : ", ") + name;
  }
  return out;
}

void print_replicated(const RecoveredPlan& recovered) {
  const plan::Plan& plan = recovered.plan;
  std::string step =
      recovered.accumulate == 1
          ? ""
          : fmt::format("; {} microbatches per step{}", recovered.accumulate,
                        recovered.sync_every_microbatch ? "" : ", only the last reduces");
  write_stdout("{}  replicate (DDP), {} rank{}; {}{}{}{}\n\n", bold("plan"), recovered.world_size,
               recovered.world_size == 1 ? "" : "s",
               plan.bucket_cap_mb ? fmt::format("bucket_cap_mb {}", *plan.bucket_cap_mb)
                                  : "buckets of the default sizes",
               plan.find_unused_parameters ? ", find_unused_parameters" : "",
               plan.gradient_as_bucket_view ? ", gradient_as_bucket_view" : "", step);
  report::Table table({{"bucket", report::Align::kLeft},
                       {"gradients"},
                       {"elements"},
                       {"bytes"},
                       {"reduced in", report::Align::kLeft},
                       {"modules", report::Align::kLeft}});
  for (size_t i = 0; i < recovered.buckets.size(); ++i) {
    const RecoveredBucket& bucket = recovered.buckets[i];
    table.row({fmt::format("bucket {}", i),
               bucket.gradients.empty() ? "-" : std::to_string(bucket.gradients.size()),
               bucket.numel < 0 ? "-" : format_count(bucket.numel), format_bytes(bucket.bytes),
               dtype_name(bucket.dtype), joined(bucket.modules)});
  }
  write_stdout(table.render(style_of_stdout()));
}

// ", tensor 2, expert 4": the axes along which work is divided.
std::string divided_words(const plan::MeshSizes& sizes) {
  std::string out;
  for (const std::string& axis : plan::mesh_axes()) {
    const int64_t ranks = plan::size_of_axis(sizes, axis).value_or(1);
    const bool divides = axis != mesh::kReplicate && axis != mesh::kShard;
    out += divides && ranks > 1 ? fmt::format(", {} {}", axis, ranks) : "";
  }
  return out;
}

void print_sharded(const RecoveredPlan& recovered) {
  const plan::Plan& plan = recovered.plan;
  write_stdout("{}  {}, {} layout, {} rank{} in shards of {}{}; {}\n\n", bold("plan"),
               plan.dialect == plan::Dialect::kFsdp1 ? "fsdp1" : "fsdp2",
               plan.layout == plan::Layout::kFlat ? "flat" : "per-parameter", recovered.world_size,
               recovered.world_size == 1 ? "" : "s", recovered.shard, divided_words(plan.mesh),
               prefetch_words(plan));
  report::Table table({{"unit", report::Align::kLeft},
                       {"elements"},
                       {"gathered"},
                       {"gathered in", report::Align::kLeft},
                       {"reduced in", report::Align::kLeft},
                       {"freed after forward", report::Align::kLeft}});
  for (const RecoveredUnit& unit : recovered.units) {
    table.row({shown(unit.fqn), unit.padded_numel < 0 ? "-" : format_count(unit.padded_numel),
               report::format_message(unit.gathered_bytes), dtype_name(unit.param_dtype),
               dtype_name(unit.reduce_dtype),
               !unit.resharded   ? "-"
               : *unit.resharded ? "yes"
                                 : "no"});
  }
  write_stdout(table.render(style_of_stdout()));
}

void print(const RecoveredPlan& recovered) {
  recovered.replicated() ? print_replicated(recovered) : print_sharded(recovered);
  write_stdout("\nworkload: {} operators and {} hooks in a step\n",
               recovered.recorded.workload.operators.size(),
               recovered.recorded.workload.hooks.size());
  for (const trace::Diagnostic& d : recovered.diagnostics) {
    write_stdout("{}: {}\n", trace::name_of(d.severity), d.message);
  }
}

// Takes from the run's own plan how it divides parameters before they are sharded: a trace has only
// the sizes of their parts.
void take_divisions(const plan::ResolvedPlan& own, plan::Plan& plan) {
  if (plan.mesh.tensor == own.plan.mesh.tensor) {
    plan.tensor_parallel = own.plan.tensor_parallel;
  }
  for (plan::UnitEntry& entry : plan.units) {
    const auto unit = std::ranges::find(own.units, fmt::format("{}", fmt::join(entry.globs, ", ")),
                                        &plan::Unit::fqn);
    if (unit != own.units.end() && unit->entry >= 0) {
      entry.groups = own.plan.units[static_cast<size_t>(unit->entry)].groups;
    }
  }
}

// A trace of DDP does not name the checkpointed modules; the plan that was recorded with it does.
void name_checkpoints(const trace::Run& run, RecoveredPlan& recovered) {
  if (!recovered.replicated() || !run.program) {
    return;
  }
  const plan::ResolvedPlan& own = run.program->plan;
  for (const uint32_t module : own.checkpointed_modules) {
    recovered.plan.activation_checkpointing.push_back(own.tree.modules[module].fqn);
  }
  if (!own.checkpointed_modules.empty()) {
    std::erase_if(recovered.diagnostics, [](const trace::Diagnostic& each) {
      return each.message == analysis::kUnnamedCheckpoints;
    });
  }
}

// The plan applied to the model that ran. It is needed for parameters, since a trace only has the
// names of units.
plan::ResolvedPlan applied(const RecoveredPlan& recovered,
                           const trace::Run& run,
                           const std::filesystem::path& model) {
  if (model.empty()) {
    if (!run.planned) {
      throw UsageError(
          "--parameters: a trace does not contain parameters; add --model M, the model that ran");
    }
    return run.planned->plan;
  }
  plan::Plan plan = recovered.plan;
  if (run.planned) {
    take_divisions(run.planned->plan, plan);
  }
  plan::ResolvedPlan out =
      plan::resolve(plan, plan::module_tree(plan::load_model_config(model)), recovered.world_size);
  for (const RecoveredUnit& unit : recovered.units) {
    for (UnitId id = 0; id < out.units.size(); ++id) {
      const int64_t numel = out.layout(id).padded_numel();
      if (out.units[id].fqn == unit.fqn && unit.padded_numel >= 0 && unit.padded_numel != numel) {
        throw InputError(model.string(),
                         fmt::format("not the model of the trace: the trace gathers {} elements "
                                     "of {}, but this model has {}{}",
                                     unit.padded_numel, shown(unit.fqn), numel,
                                     plan::divided_axis(plan.mesh).first.empty()
                                         ? ""
                                         : "; or its parameters were divided in another way: the "
                                           "plan.json that shardlens.record writes says how"));
      }
    }
  }
  return out;
}

}  // namespace

ExitCode plan_from_trace(const PlanFromTraceOptions& options) {
  const std::filesystem::path out = options.outputs->directory("--out");
  trace::ReadOptions read;
  read.keep_args = true;
  const auto analyzed = analysis::AnalyzedRun::open(options.traces, read);
  const trace::Run& run = analyzed.run();
  RecoveredPlan recovered = analyzed.recovered_plan();
  name_checkpoints(run, recovered);
  for (const std::string& note : trace::notes_of_run(run.environment)) {
    trace::add_diagnostic(recovered.diagnostics, trace::Severity::kNote,
                          "shardlens.record: " + note);
  }
  if (!options.model.empty() && !recovered.names_units) {
    const plan::ModuleTree tree = plan::module_tree(plan::load_model_config(options.model));
    if (!analysis::name_units(recovered, tree)) {
      throw InputError(
          options.model.string(),
          fmt::format(
              "the trace's {} units do not match this model's {} blocks and root in number or size",
              recovered.units.size(), tree.blocks.size()));
    }
  }
  std::optional<plan::ResolvedPlan> resolved;
  if (options.parameters) {
    resolved = applied(recovered, run, options.model);
  }
  if (!out.empty()) {
    (void)OutputFolder::make(out);
    const DirectoryLock lock(capture_place(out));
    const auto files = options.outputs->new_files_in("--out", out, {"plan.json", "workload.json"});
    plan::ResolvedPlan names;  // workload.json lists units by name
    for (const RecoveredUnit& unit : recovered.units) {
      names.units.emplace_back();
      names.units.back().fqn = unit.fqn;
    }
    write_file_atomically(files[0], plan::to_json(recovered.plan));
    write_file_atomically(files[1], plan::to_json(recovered.recorded.workload, names));
  }
  if (options.json) {
    const std::string text = json_text(recovered);
    if (resolved) {
      write_json_with_parameters(text, *resolved);
    } else {
      write_data(text);
    }
  } else {
    print(recovered);
    if (resolved) {
      print_parameters(*resolved);
    }
    if (!out.empty()) {
      write_stdout("written: {} and {}\n", (out / "plan.json").string(),
                   (out / "workload.json").string());
    }
  }
  return ExitCode::kOk;
}

}  // namespace shardlens::cli
