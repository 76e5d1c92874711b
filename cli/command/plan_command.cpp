#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "core/base/dtype.h"
#include "core/base/error.h"
#include "core/base/format_bytes.h"
#include "core/base/show.h"
#include "core/base/standard_output.h"
#include "core/edits/pytorch_program.h"
#include "core/files/atomic_file.h"
#include "core/files/output_folder.h"
#include "core/json/json_dump.h"
#include "core/json/json_reader.h"
#include "core/model/model_file.h"
#include "core/model/step_workload.h"
#include "core/plan/plan.h"
#include "core/plan/plan_mesh_json.h"
#include "core/plan/rank_bytes.h"
#include "core/plan/resolve.h"
#include "core/plan/unit_sizes.h"
#include "core/schedule/collective_of.h"
#include "core/schedule/planned/collective_totals.h"
#include "core/schedule/planned/plan_lints.h"
#include "core/schedule/planned/planned.h"
#include "core/workload/workload.h"
#include "profiler/report/table.h"
#include "profiler/trace/parallel_axes.h"

#include "cli/capture/engine_program.h"
#include "cli/command/subcommand.h"
#include "cli/flags/foreign_plan.h"
#include "cli/flags/outputs.h"
#include "cli/flags/run_options.h"
#include "cli/results/output.h"
#include "cli/results/parameter_ranges.h"
#include "cli/results/plan_from_trace.h"
#include "cli/results/plan_lints_text.h"
#include "cli/results/plan_mesh.h"

namespace shardlens::cli {
namespace {

using plan::ResolvedPlan;
using plan::Unit;
using schedule::PlannedAction;

constexpr int kSteadyStep = 3;
constexpr int64_t kDefaultRanks = 2;

struct PlanOptions {
  std::filesystem::path model, plan, from;
  std::string strategy = "full_shard", mesh;
  std::optional<int64_t> world_size;
  plan::StepSettings step;
  bool parameters = false, actions = false, json = false, engine = false, pytorch = false;
  std::vector<std::filesystem::path> from_trace;
  Outputs outputs;
};

std::string shown(std::string_view fqn) {
  return fqn.empty() ? "(root)" : std::string(fqn);
}

// Size of a rank's part of a unit's parameters in the dtypes in which they are trained, and of its
// shard. Where the mesh does not divide a parameter, the part is the whole parameter.
struct UnitBytes {
  int64_t parameters = 0;
  Bytes bytes = 0, padding = 0, shard = 0;
};

UnitBytes bytes_of(const ResolvedPlan& plan, UnitId id, int64_t rank = 0) {
  const plan::ShardLayout layout = plan.layout(id, rank);
  UnitBytes out{layout.numel(), 0, layout.padding_numel() * size_of(plan.master_dtype(id)),
                plan::shard_bytes(plan, id, layout)};
  for (const uint32_t parameter : plan.units[id].parameters) {
    out.bytes += plan::local_bytes(plan, parameter, rank);
  }
  return out;
}

schedule::PlannedStep planned_step(const plan::ModelConfig& config,
                                   const ResolvedPlan& plan,
                                   const PlanOptions& options) {
  // The order depends neither on the number of tokens nor on how ranks divide operators.
  plan::StepSettings step = options.step;
  ResolvedPlan whole = plan;
  whole.mesh = {};
  step.seq = config.file != nullptr ? 64 : std::min<int64_t>(config.max_positions, 64);
  return schedule::planned_step(config.file != nullptr ? plan::hooks_of_file(*config.file, plan)
                                                       : plan::step_workload(config, whole, step),
                                plan, kSteadyStep, step);
}

nlohmann::ordered_json buckets_json(const ResolvedPlan& plan, const schedule::PlannedStep& step) {
  auto out = nlohmann::ordered_json::array();
  for (const schedule::PlannedBucket& bucket : step.buckets) {
    auto parameters = nlohmann::ordered_json::array();
    for (const uint32_t parameter : bucket.parameters) {
      parameters.push_back(plan.tree.parameters[parameter].fqn);
    }
    out.push_back({{"name", bucket.name}, {"bytes", bucket.bytes}, {"parameters", parameters}});
  }
  return out;
}

nlohmann::ordered_json collectives_json(const ResolvedPlan& plan,
                                        const schedule::PlannedStep& step) {
  auto out = nlohmann::ordered_json::object();
  for (const schedule::CollectiveTotal& total : schedule::collective_totals(plan, step)) {
    out[std::string(name_of(total.kind))] = {{"count", total.count}, {"bytes", total.bytes}};
  }
  return out;
}

std::string json_text(const ResolvedPlan& plan,
                      const schedule::PlannedStep& step,
                      bool with_actions) {
  using nlohmann::ordered_json;
  const auto fqn = [&step](UnitId unit) {
    return unit == kNoUnit ? ordered_json() : ordered_json(step.unit_names.at(unit));
  };
  ordered_json out;
  out["schema"] = 1;
  out["mesh"] = plan::every_axis_json(plan::sizes_of(plan));
  out["groups"] = groups_json(plan);
  out["units"] = ordered_json::array();
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    const UnitBytes unit = bytes_of(plan, id);
    out["units"].push_back({{"fqn", plan.units[id].fqn},
                            {"parameters", unit.parameters},
                            {"bytes", unit.bytes},
                            {"padding_bytes", unit.padding},
                            {"shard_bytes", unit.shard}});
  }
  out["ranks"] = ordered_json::array();
  const std::vector<Bytes> by_rank = plan::bytes_by_rank(plan);
  for (int64_t rank = 0; rank < plan.world_size; ++rank) {
    out["ranks"].push_back(
        {{"rank", rank}, {"parameter_bytes", by_rank[static_cast<size_t>(rank) % by_rank.size()]}});
  }
  if (!step.buckets.empty()) {
    out["buckets"] = buckets_json(plan, step);
  }
  out["collectives"] = collectives_json(plan, step);
  out["lints"] = lints_json(schedule::plan_lints(plan, step));
  if (with_actions) {
    out["actions"] = ordered_json::array();
    for (const PlannedAction& planned : step.actions) {
      out["actions"].push_back(
          {{"seq", planned.seq},
           {"hook", name_of(planned.hook.hook)},
           {"hook_unit", fqn(planned.hook.unit)},
           {"op", name_of(planned.action.op)},
           {"unit", fqn(planned.action.unit)},
           {"group", planned.action.group == mesh::kNoGroup
                         ? ordered_json()
                         : ordered_json(plan.groups[planned.action.group].name)},
           {"stream", name_of(planned.action.stream)},
           {"cause", name_of(planned.action.cause)}});
    }
  }
  return plan::json_text(out, 1) + "\n";
}

// "fp32 master copy", or "shards in bf16" where a program trains its parameters in other dtypes.
std::string dtype_words(const ResolvedPlan& plan) {
  std::set<std::string_view> dtypes;
  for (const plan::Parameter& parameter : plan.tree.parameters) {
    dtypes.insert(plan_name(parameter.dtype));
  }
  return dtypes == std::set{plan_name(DType::kF32)}
             ? "fp32 master copy"
             : fmt::format("shards in {}", fmt::join(dtypes, ", "));
}

void print_units(const plan::ModelConfig& config, const ResolvedPlan& plan) {
  int64_t parameters = 0;
  for (const plan::Parameter& parameter : plan.tree.parameters) {
    parameters += parameter.numel;
  }
  write_stdout("{}  {} from {}: {} blocks, {} parameters\n", bold("model"), config.torch_type,
               config.source, plan.tree.blocks.size(), format_count(parameters));
  for (const std::string& note : config.notes) {
    write_stdout("{}   {}\n", bold("note"), note);
  }
  write_stdout("{}   {}: {}, {} layout, {}; {}\n\n", bold("plan"), plan.plan.source,
               plan.plan.dialect == plan::Dialect::kFsdp1 ? "fsdp1" : "fsdp2",
               plan.plan.layout == plan::Layout::kFlat ? "flat" : "per-parameter", mesh_words(plan),
               dtype_words(plan));
  report::Table table(
      {{"unit", report::Align::kLeft}, {"parameters"}, {"bytes"}, {"padding"}, {"shard bytes"}});
  UnitBytes total;
  for (UnitId id = 0; id < plan.units.size(); ++id) {
    const UnitBytes unit = bytes_of(plan, id);
    table.row({shown(plan.units[id].fqn), format_count(unit.parameters), format_bytes(unit.bytes),
               format_bytes(unit.padding), format_bytes(unit.shard)});
    total.parameters += unit.parameters;
    total.bytes += unit.bytes;
    total.padding += unit.padding;
    total.shard += unit.shard;
  }
  table.row({"total", format_count(total.parameters), format_bytes(total.bytes),
             format_bytes(total.padding), format_bytes(total.shard)});
  write_stdout(table.render(style_of_stdout()));
  const std::vector<Bytes> by_rank = plan::bytes_by_rank(plan);
  const auto [least, most] = std::ranges::minmax(by_rank);
  const Bytes whole = by_rank.front() - total.shard;
  write_stdout("\nevery one of {} rank{} holds {}{} of parameters{}\n", plan.world_size,
               plan.world_size == 1 ? "" : "s", least == most ? "" : format_bytes(least) + " to ",
               format_bytes(most),
               whole == 0 ? ""
                          : fmt::format(", {} of them ignored by the plan and not sharded",
                                        format_bytes(whole)));
}

std::string with_hyphens(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

void print_buckets(const schedule::PlannedStep& step) {
  write_stdout("\n{}\n", bold("buckets of a steady step, as c10d's Reducer creates them"));
  report::Table table({{"bucket", report::Align::kLeft}, {"parameters"}, {"bytes"}});
  for (const schedule::PlannedBucket& bucket : step.buckets) {
    table.row({bucket.name, format_count(static_cast<int64_t>(bucket.parameters.size())),
               format_bytes(bucket.bytes)});
  }
  write_stdout(table.render(style_of_stdout()));
}

void print_collectives(const ResolvedPlan& plan,
                       const schedule::PlannedStep& step,
                       const PlanOptions& options) {
  const auto totals = schedule::collective_totals(plan, step);
  if (totals.empty()) {
    return;
  }
  const std::string microbatches =
      options.step.accumulate == 1
          ? ""
          : fmt::format(" of {} microbatches{}", options.step.accumulate,
                        !options.step.sync_every_microbatch ? ", only the last reduces" : "");
  write_stdout("\n{}\n", bold(show("a rank's collectives in a step{}", microbatches)));
  report::Table table({{"collective", report::Align::kLeft}, {"count"}, {"bytes"}});
  for (const schedule::CollectiveTotal& total : totals) {
    table.row(
        {with_hyphens(name_of(total.kind)), format_count(total.count), format_bytes(total.bytes)});
  }
  write_stdout(table.render(style_of_stdout()));
}

std::string hook_words(const PlannedAction& planned, const std::vector<std::string>& names) {
  const std::string unit = shown(names.at(planned.hook.unit));
  switch (planned.hook.hook) {
    case Hook::kRootPreForward:
      return "forward begins";
    case Hook::kPreForward:
      return "forward of " + unit;
    case Hook::kPostForward:
      return "end of forward of " + unit;
    case Hook::kPreBackward:
      return "backward of " + unit;
    case Hook::kGradsReady:
      return "gradients of " + unit;
    case Hook::kBackwardEnd:
      return "backward ends";
    case Hook::kOptimizerDone:
      return "optimizer step";
    default:
      return std::string(name_of(planned.hook.hook)) + " of " + unit;
  }
}

std::string cause_words(schedule::Cause cause) {
  switch (cause) {
    case schedule::Cause::kForwardPrefetch:
      return "prefetched in forward";
    case schedule::Cause::kBackwardPrefetch:
      return "prefetched in backward";
    case schedule::Cause::kExplicitPrefetch:
      return "prefetched by the plan";
    case schedule::Cause::kLimiter:
      return "delayed by the rate limiter";
    case schedule::Cause::kUser:
      return "requested by the caller";
    case schedule::Cause::kBackwardEnd:
      return "at the end of backward";
    case schedule::Cause::kOwn:
      break;
  }
  return "";
}

void print_order(const schedule::PlannedStep& step, bool every_action) {
  write_stdout(
      "\n{}\n",
      bold(every_action ? Literal("actions of a steady step (the third), in planned order")
                        : Literal("collectives of a steady step (the third), in planned order")));
  std::vector<report::Table::Column> columns;
  for (const char* title :
       every_action ? std::vector<const char*>{"seq", "when", "action", "unit", "stream", "cause"}
                    : std::vector<const char*>{"when", "collective", "unit", ""}) {
    columns.push_back({title, report::Align::kLeft});
  }
  report::Table table(std::move(columns));
  size_t rows = 0;
  for (const PlannedAction& planned : step.actions) {
    const schedule::Action& action = planned.action;
    const std::string unit = action.unit == kNoUnit ? "" : shown(step.unit_names.at(action.unit));
    if (every_action) {
      table.row({std::to_string(planned.seq), hook_words(planned, step.unit_names),
                 with_hyphens(name_of(action.op)), unit, std::string(name_of(action.stream)),
                 std::string(name_of(action.cause))});
    } else if (schedule::collective_of(action.op)) {
      table.row({hook_words(planned, step.unit_names), with_hyphens(name_of(action.op)), unit,
                 cause_words(action.cause)});
      ++rows;
    }
  }
  write_stdout(every_action || rows > 0 ? table.render(style_of_stdout())
                                        : Shown("none: there is one rank\n"));
}

// Replaces this process with a worker, which prints one more line.
[[noreturn]] void become_engine(const PlanOptions& options, int64_t world_size) {
  std::vector<std::string> command{
      worker_program("plan --engine"), "shard",        "--model",
      options.model.string(),          "--world-size", std::to_string(world_size)};
  if (options.plan.empty()) {
    command.insert(command.end(), {"--strategy", options.strategy});
  } else {
    command.insert(command.end(), {"--plan", options.plan.string()});
  }
  if (!options.mesh.empty()) {
    command.insert(command.end(), {"--mesh", options.mesh});
  }
  std::vector<char*> arguments;
  for (std::string& each : command) {
    arguments.push_back(each.data());
  }
  arguments.push_back(nullptr);
  std::fflush(nullptr);
  ::execv(arguments[0], arguments.data());
  throw RuntimeFault(fmt::format("cannot start {}: {}", command[0], std::strerror(errno)));
}

void print_plan(const PlanOptions& options,
                const plan::ModelConfig& config,
                const ResolvedPlan& plan) {
  const schedule::PlannedStep step = planned_step(config, plan, options);
  if (options.json) {
    const std::string text = json_text(plan, step, options.actions);
    if (options.parameters) {
      write_json_with_parameters(text, plan);
    } else {
      write_data(text);
    }
    return;
  }
  print_units(config, plan);
  print_groups(plan);
  if (options.parameters) {
    print_parameters(plan);
  }
  if (!step.buckets.empty()) {
    print_buckets(step);
  }
  print_collectives(plan, step, options);
  write_stdout(lints_text(schedule::plan_lints(plan, step), style_of_stdout()));
  print_order(step, options.actions);
}

// Adds what only the run.json next to a recorded run's plan says of it.
void add_recorded_axes(const std::filesystem::path& plan_file, plan::Plan& plan) {
  const std::filesystem::path run = plan_file.parent_path() / "run.json";
  if (plan_file.empty() || !std::filesystem::exists(run)) {
    return;
  }
  const std::string text = plan::read_text_file(run);
  const std::vector<trace::ProcessGroup> groups = trace::groups_of_run(text);
  const int64_t before = plan.mesh.tensor;
  trace::add_tensor_axis(plan, groups, text);
  if (plan.mesh.tensor != before) {
    write_stderr("shardlens: note: {}: the run has {}\n", run.string(),
                 trace::words_of(trace::model_axes(groups)));
  }
}

// The ranks that a mesh says: at least two.
int64_t ranks_of(const plan::MeshSizes& mesh) {
  const int64_t divided = mesh.context * mesh.tensor;
  return mesh.replicate && mesh.shard
             ? *mesh.replicate * *mesh.shard * divided
             : std::max(kDefaultRanks, mesh.replicate.value_or(1) * mesh.shard.value_or(1) *
                                           std::max(divided, mesh.expert));
}

// The plan of --from, --plan or --strategy. `ranks`: what a file says, unless it is set.
plan::Plan named_plan(const PlanOptions& options,
                      const plan::ModuleTree& tree,
                      std::optional<int64_t>& ranks) {
  if (!options.from.empty()) {
    plan::ForeignPlan foreign = load_foreign_plan(options.from, tree);
    for (const std::string& note : foreign.notes) {
      write_stderr("shardlens: note: {}\n", note);
    }
    ranks = ranks ? ranks : foreign.world_size;
    return std::move(foreign.plan);
  }
  plan::Plan plan = options.plan.empty() ? plan::strategy_plan(options.strategy, tree)
                                         : plan::load_plan(options.plan);
  add_recorded_axes(options.plan, plan);
  return plan;
}

// The files of --out and --to.
void write_files(const PlanOptions& options, const ResolvedPlan& plan) {
  if (const std::filesystem::path to = options.outputs.file("--to"); !to.empty()) {
    const plan::AccelerateText text = plan::accelerate_text(plan, foreign_file_of(to));
    for (const std::string& note : text.notes) {
      write_stderr("shardlens: note: {}: {}\n", to.string(), note);
    }
    write_file_atomically(to, text.text);
  }
  if (const std::filesystem::path out = options.outputs.directory("--out"); !out.empty()) {
    (void)OutputFolder::make(out);
    const auto files = options.outputs.new_files_in("--out", out, {"plan.json"});
    write_file_atomically(files.front(), plan::to_json(plan.plan));
    write_stderr("wrote {}\n", files.front().string());
  }
}

ExitCode run_plan(const PlanOptions& options) {
  if (!options.from_trace.empty()) {
    return plan_from_trace({.traces = options.from_trace,
                            .outputs = &options.outputs,
                            .model = options.model,
                            .json = options.json,
                            .parameters = options.parameters});
  }
  if (options.outputs.given("--out") && options.from.empty()) {
    throw UsageError("--out needs --from or --from-trace");
  }
  if (options.model.empty()) {
    throw UsageError(
        "--model is required: a directory with config.json, or a config.json (or use --from-trace "
        "PATH)");
  }
  if (options.world_size && *options.world_size < 1) {
    throw UsageError(fmt::format("--world-size {}: expected at least 1", *options.world_size));
  }
  check_step(options.step);
  const plan::ModelConfig config = plan::load_model_config(options.model);
  const plan::ModuleTree tree = plan::module_tree(config);
  std::optional<int64_t> ranks = options.world_size;
  plan::Plan plan = named_plan(options, tree, ranks);
  plan.mesh = plan::with_mesh(plan.mesh, options.mesh);
  const ResolvedPlan resolved = plan::resolve(plan, tree, ranks.value_or(ranks_of(plan.mesh)));
  write_files(options, resolved);
  if (options.pytorch) {
    write_data(fmt::format("{}\n", fmt::join(plan::pytorch_program(resolved), "\n")));
    return ExitCode::kOk;
  }
  print_plan(options, config, resolved);
  if (options.engine) {
    become_engine(options, resolved.world_size);
  }
  return ExitCode::kOk;
}

}  // namespace

Action add_plan_command(CLI::App& app) {
  const auto options = std::make_shared<PlanOptions>();
  app.add_option("--model", options->model,
                 "directory with config.json, a config.json, or a model.json; required without "
                 "--from-trace")
      ->option_text("M");
  auto* strategy = app.add_option("--strategy", options->strategy,
                                  "full_shard, shard_grad_op, no_shard, hybrid_shard or replicate")
                       ->option_text("S [full_shard]");
  app.add_option("--plan", options->plan, "plan file (shardlens docs plan), instead of --strategy")
      ->excludes(strategy)
      ->option_text("F");
  CLI::Option* from_trace = app.add_option("--from-trace", options->from_trace,
                                           "recover the plan of a PyTorch FSDP1 or FSDP2 run, or "
                                           "of a capture, from its traces; with --model, "
                                           "FSDP1's units get names from that model")
                                ->option_text("PATH…")
                                ->excludes(strategy)
                                ->excludes("--plan");
  CLI::Option* from =
      app.add_option("--from", options->from,
                     "take the plan of a config file of accelerate (YAML), or of an fsdp_config of "
                     "transformers (JSON)")
          ->option_text("F")
          ->excludes(strategy)
          ->excludes("--plan")
          ->excludes(from_trace);
  options->outputs
      .add(app, "--out",
           "write plan.json, and with --from-trace workload.json, to this directory; with --from "
           "or --from-trace")
      ->option_text("DIR");
  options->outputs
      .add(app, "--to",
           "write the plan as a config file of accelerate, or as an fsdp_config of transformers if "
           "the name ends in .json")
      ->option_text("FILE")
      ->excludes(from_trace);
  app.add_option("--mesh", options->mesh,
                 "RxS, replicas of shards, or axis=size,…; replaces those of the plan")
      ->excludes(from_trace)
      ->option_text("RxS");
  app.add_option("--world-size", options->world_size, "number of ranks [that of the mesh, or 2]")
      ->option_text("W");
  app.add_option("--accumulate", options->step.accumulate, "microbatches per step")
      ->excludes(from_trace)
      ->option_text("M [1]");
  app.add_flag("!--no-sync", options->step.sync_every_microbatch,
               "with --accumulate: only the last microbatch reduces gradients")
      ->excludes(from_trace);
  app.add_flag("--parameters", options->parameters,
               "list every parameter with the elements that each rank has; with --from-trace, for "
               "a capture or with --model");
  app.add_flag("--actions", options->actions,
               "list every action of the planned order, not only collectives")
      ->excludes(from_trace);
  app.add_flag("--engine", options->engine,
               "also shard the model with the engine, as rank 0 and without allocating memory, and "
               "compare its shards with the plan's")
      ->excludes(from_trace)
      ->excludes(from);
  CLI::Option* json = app.add_flag("--json", options->json, "machine-readable output");
  app.add_flag("--pytorch", options->pytorch,
               "print the lines of a PyTorch program that apply the plan: device mesh, "
               "parallelize_module, fully_shard; and torchtitan's degrees")
      ->excludes(from_trace)
      ->excludes(json)
      ->excludes("--engine");
  return [options] { return run_plan(*options); };
}

}  // namespace shardlens::cli
