#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/format_bytes.h"
#include "core/base/heap.h"
#include "core/base/show.h"
#include "core/base/standard_output.h"
#include "core/files/atomic_file.h"
#include "core/files/directory_lock.h"
#include "core/json/json_dump.h"
#include "core/json/json_reader.h"
#include "core/mesh/mesh.h"
#include "core/plan/mesh_sizes.h"
#include "core/plan/plan_mesh_json.h"
#include "profiler/report/table.h"
#include "sim/scenario/uncertainty.h"
#include "sim/search/mesh_report.h"
#include "sim/search/meshes.h"
#include "sim/search/per_block.h"
#include "sim/search/search.h"

#include "cli/command/subcommand.h"
#include "cli/flags/outputs.h"
#include "cli/flags/run_options.h"
#include "cli/flags/scenario_options.h"
#include "cli/flags/size_option.h"
#include "cli/results/largest_steps.h"
#include "cli/results/output.h"
#include "cli/results/search_meshes.h"
#include "cli/results/search_state.h"
#include "cli/results/stack_used.h"

namespace shardlens::cli {
namespace {

constexpr size_t kFrontShown = 12;
constexpr unsigned kMostSearchThreads = 1024;

struct SearchCommand {
  RunOptions run;
  int64_t memory_limit = 0;
  ScenarioOptions scenario;
  Outputs outputs;
  unsigned threads = 0;
  std::vector<std::string> precisions;           // --precisions, as given
  std::vector<int64_t> context, tensor, expert;  // sizes that the mesh may have; empty: every size
  bool per_block = false, fits = false, json = false;
};

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // a handler sets it

// The first interrupt ends the search, which reports its results so far; the second one kills the
// process.
void interrupt(int signal) {
  interrupted = true;
  std::signal(signal, SIG_DFL);
}

// A plan of the front, with the 90 % intervals of simulate; nullopt where it has none.
struct Listed {
  plan::Plan plan;
  std::optional<sim::PredictedInterval> interval, change_interval;
  std::optional<sim::ThroughputInterval> tokens;  // per second
  std::optional<LargestSteps> largest;            // with --fits
};

std::vector<Listed> listed(const SearchCommand& options,
                           const sim::SearchResult& result,
                           const sim::Scenario& scenario) {
  std::vector<Listed> out;
  const auto& recorded = scenario.model->run();
  const auto uncertainty = recorded != nullptr && scenario.machine == recorded->machine()
                               ? sim::Uncertainty(recorded)
                               : sim::Uncertainty(scenario.machine);
  for (const sim::Found& found : result.pareto) {
    const sim::Scenario changed = scenario_of(found.candidate, scenario);
    Listed each{
        .plan = changed.plan, .interval = {}, .change_interval = {}, .tokens = {}, .largest = {}};
    if (options.fits) {
      each.largest = largest_steps(changed, options.memory_limit);
    }
    sim::Prediction prediction = sim::evaluate(changed);
    uncertainty.add_to(changed, prediction);
    each.interval = prediction.interval;
    each.change_interval = prediction.change_interval;
    each.tokens = sim::tokens_interval(prediction);
    out.push_back(std::move(each));
  }
  return out;
}

// Prints what a search on the bare hardware finds, if the constants of a stack were used.
struct Bare {
  std::optional<StackUsed> stack;    // nullopt: as stack_used()
  std::optional<sim::Found> best;    // nullopt: not searched, or nothing fits
  std::optional<sim::Found> chosen;  // the plan found under the stack, on the bare hardware

  [[nodiscard]] bool differs(const sim::SearchResult& result) const {
    return best && result.best() != nullptr && !(best->candidate == result.best()->candidate);
  }
};

Bare on_bare_hardware(const SearchCommand& options,
                      const sim::Scenario& scenario,
                      const sim::SearchResult& result,
                      const sim::SearchOptions& search) {
  Bare out;
  out.stack = stack_used(options.run, options.scenario, scenario);
  if (!out.stack || result.cancelled || result.best() == nullptr) {
    return out;
  }
  ScenarioOptions bare = options.scenario;
  bare.bare = true;
  sim::Scenario on_bare = scenario;
  on_bare.machine = scenario_of(options.run, bare).machine;
  sim::SearchOptions settings;
  settings.memory_limit = search.memory_limit;
  settings.threads = search.threads;
  settings.precisions = search.precisions;
  settings.meshes = search.meshes;
  settings.cancelled = search.cancelled;
  const sim::Candidate& chosen = result.best()->candidate;
  settings.on_progress = [&out, &chosen](const sim::Found& found, size_t, size_t) {
    if (found.candidate == chosen) {
      out.chosen = found;
    }
  };
  const sim::SearchResult found = sim::search(on_bare, settings);
  if (found.best() != nullptr && !found.cancelled) {
    out.best = *found.best();
  }
  return out;
}

Shown bare_text(const Bare& bare, const sim::SearchResult& result, int64_t ranks) {
  if (!bare.best) {
    return Literal("\n");
  }
  Shown out = show("On the bare hardware the fastest takes {}",
                   report::format_duration(bare.best->outcome.figures.duration()));
  if (!bare.differs(result)) {
    return out + " and is the same plan.\n";
  }
  out += show(" and is another plan: {}", name_of(bare.best->candidate, ranks));
  if (bare.chosen) {
    out += show("; this one takes {} there",
                report::format_duration(bare.chosen->outcome.figures.duration()));
  }
  return out + ".\n";
}

nlohmann::ordered_json precision_json(const std::optional<sim::Precision>& precision) {
  return precision ? nlohmann::ordered_json(name_of(*precision)) : nlohmann::ordered_json();
}

nlohmann::ordered_json by_precision_json(const sim::SearchResult& result, int64_t ranks) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const sim::PrecisionResult& each : result.by_precision) {
    nlohmann::ordered_json row{
        {"precision", name_of(each.precision)}, {"name", nullptr}, {"step_ns", nullptr}};
    if (each.best) {
      row["name"] = name_of(each.best->candidate, ranks);
      row["step_ns"] = each.best->outcome.figures.duration();
    }
    out.push_back(std::move(row));
  }
  return out;
}

// How fast the fastest plan of each precision is, if the search could choose.
Shown by_precision_text(const sim::SearchResult& result) {
  if (result.by_precision.size() < 2) {
    return {};
  }
  Shown out = Literal("The fastest by precision (parameters/reduction):");
  for (size_t i = 0; i < result.by_precision.size(); ++i) {
    const sim::PrecisionResult& each = result.by_precision[i];
    out += show(
        "{} {} {}", i == 0 ? "" : ",", name_of(each.precision),
        each.best ? report::format_duration(each.best->outcome.figures.duration()) : "no plan");
  }
  return out + ". Precision changes what the model computes.\n";
}

nlohmann::ordered_json per_block_json(const std::optional<sim::PerBlockPlan>& found,
                                      int64_t ranks) {
  if (!found) {
    return nullptr;
  }
  return {{"name", name_of(found->candidate, ranks)},
          {"mesh", plan::every_axis_json(found->plan.mesh)},
          {"plan", nlohmann::ordered_json::parse(plan::to_json(found->plan))},
          {"precision", precision_json(found->candidate.precision)},
          {"batch", found->candidate.batch},
          {"accumulate", found->candidate.accumulate},
          {"step_ns", found->outcome.figures.duration()},
          {"peak_allocated_bytes", found->outcome.peak_allocated},
          {"peak_reserved_bytes", found->outcome.peak_reserved},
          {"exposed_comm_ns", found->outcome.figures.exposed_comm},
          {"gap", found->gap},
          {"evaluated", found->evaluated},
          {"cancelled", found->cancelled}};
}

Shown per_block_text(const std::optional<sim::PerBlockPlan>& found, int64_t ranks) {
  if (!found) {
    return Literal("Block by block: nothing fits.\n");
  }
  return show(
      "Block by block: {}: {}, {} reserved; at most {} above the best with units of one size ({} "
      "plans simulated).\n",
      name_of(found->candidate, ranks), report::format_duration(found->outcome.figures.duration()),
      format_bytes(found->outcome.peak_reserved), report::format_percent(found->gap),
      found->evaluated);
}

std::string json_text(const sim::SearchResult& result,
                      const std::vector<sim::MeshReport>& meshes,
                      const std::vector<Listed>& plans,
                      const Bare& bare,
                      const std::optional<sim::PerBlockPlan>& per_block,
                      const plan::Software& software,
                      int64_t ranks) {
  const auto interval = [](const std::optional<sim::PredictedInterval>& of) {
    return of ? nlohmann::ordered_json{of->low, of->high} : nlohmann::ordered_json();
  };
  const auto row = [&](size_t i) {
    const sim::Found& found = result.pareto[i];
    nlohmann::ordered_json out{
        {"name", name_of(found.candidate, ranks)},
        {"mesh", plan::every_axis_json(plans[i].plan.mesh)},
        {"plan", nlohmann::ordered_json::parse(plan::to_json(plans[i].plan))},
        {"precision", precision_json(found.candidate.precision)},
        {"batch", found.candidate.batch},
        {"accumulate", found.candidate.accumulate},
        {"step_ns", found.outcome.figures.duration()},
        {"peak_allocated_bytes", found.outcome.peak_allocated},
        {"peak_reserved_bytes", found.outcome.peak_reserved},
        {"exposed_comm_ns", found.outcome.figures.exposed_comm},
        {"interval_ns", interval(plans[i].interval)},
        {"tokens_per_s_interval",
         plans[i].tokens ? nlohmann::ordered_json{plans[i].tokens->low, plans[i].tokens->high}
                         : nlohmann::ordered_json()},
        {"change_interval_ns", interval(plans[i].change_interval)}};
    if (plans[i].largest) {
      out["fits"] = fits_json(*plans[i].largest);
    }
    return out;
  };
  nlohmann::ordered_json out;
  out["schema"] = 1;
  out["candidates"] = result.all;
  out["evaluated"] = result.evaluated;
  out["pruned"] = result.pruned;
  out["slower"] = result.slower;
  out["refused"] = result.refused;
  out["cancelled"] = result.cancelled;
  out["software"] = plan::software_json(software);
  out["best"] = nullptr;
  if (!result.pareto.empty()) {
    out["best"] = row(0);
    out["best"]["why"] = result.why;
  }
  out.update(stack_json(bare.stack));
  out["bare"] = nullptr;
  if (bare.best) {
    out["bare"] = {{"name", name_of(bare.best->candidate, ranks)},
                   {"step_ns", bare.best->outcome.figures.duration()},
                   {"same_plan", !bare.differs(result)}};
  }
  out["precisions"] = by_precision_json(result, ranks);
  out["per_block"] = per_block_json(per_block, ranks);
  out["meshes"] = meshes_json(result, meshes, ranks);
  out["not_tried"] = result.not_tried;
  out["pareto"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < result.pareto.size(); ++i) {
    out["pareto"].push_back(row(i));
  }
  return plan::json_text(out, 1) + "\n";
}

void print_text(const sim::SearchResult& result,
                const std::vector<sim::MeshReport>& meshes,
                const std::vector<Listed>& plans,
                int64_t ranks) {
  const bool intervals = plans.front().interval.has_value();
  std::vector<report::Table::Column> columns{{"plan", report::Align::kLeft}, {"step"}};
  if (intervals) {
    columns.insert(columns.end(), {{"90 % from"}, {"to"}});
  }
  columns.insert(columns.end(), {{"exposed communication"}, {"peak reserved"}});
  const bool largest = plans.front().largest.has_value();
  if (largest) {
    columns.insert(columns.end(), {{"largest batch"}, {"longest sequence"}});
  }
  report::Table table(std::move(columns));
  for (size_t i = 0; i < std::min(kFrontShown, result.pareto.size()); ++i) {
    const sim::Found& found = result.pareto[i];
    std::vector<std::string> cells{name_of(found.candidate, ranks),
                                   report::format_duration(found.outcome.figures.duration())};
    if (intervals) {
      cells.push_back(report::format_duration(plans[i].interval->low));
      cells.push_back(report::format_duration(plans[i].interval->high));
    }
    cells.push_back(report::format_duration(found.outcome.figures.exposed_comm));
    cells.push_back(format_bytes(found.outcome.peak_reserved));
    if (largest) {
      cells.push_back(largest_text(plans[i].largest->batch));
      cells.push_back(largest_text(plans[i].largest->sequence));
    }
    table.row(std::move(cells));
  }
  write_stdout(table.render(style_of_stdout()));
  if (result.pareto.size() > kFrontShown) {
    const size_t more = result.pareto.size() - kFrontShown;
    write_stdout("{} more plan{} that no other plan beats in all three\n", more,
                 more == 1 ? "" : "s");
  }
  write_stdout("\n{}\n{}\n", result.why, by_precision_text(result));
  write_stdout(meshes_text(result, meshes, style_of_stdout()));
}

// The software that the figures assume.
void print_machine(const SearchCommand& options,
                   const Bare& bare,
                   const sim::SearchResult& result,
                   int64_t ranks) {
  if (bare.stack) {
    write_stdout("These are figures under {}. {}", bare.stack->text(),
                 bare_text(bare, result, ranks));
  } else if (options.scenario.workload.empty() && options.scenario.calibration.empty()) {
    write_stdout("These are figures of the bare hardware; real steps take longer.\n");
  }
}

// JSON of everything that the outcomes depend on.
std::string identity_of(const SearchCommand& options, const sim::Scenario& scenario) {
  using nlohmann::json;
  const plan::ModelConfig* config = scenario.model->config();
  const sim::Calibration* calibration = scenario.machine->calibration();
  const std::optional<StackUsed> stack = stack_used(options.run, options.scenario, scenario);
  json out{
      {"model", config == nullptr
                    ? json()
                    : plan::parse_json(plan::read_text_file(config->source), config->source)},
      {"plan", json::parse(plan::to_json(scenario.plan))},
      {"hardware", options.run.hardware},
      {"stack", stack ? stack->name : options.scenario.stack},
      {"program", name_of(scenario.step.program)},
      {"power_limit", options.scenario.power_limit.value_or("")},
      {"calibration", calibration == nullptr ? json() : json::parse(sim::to_json(*calibration))},
      {"ranks", scenario.world_size},
      {"samples", scenario.step.samples()},
      {"seq", scenario.step.seq.value_or(0)},
      {"no_sync", !scenario.step.sync_every_microbatch},
      {"optimizer_states", scenario.step.optimizer_states()},

      {"memory_limit", options.memory_limit}};
  if (scenario.step.software != plan::Software{}) {
    out["software"] = plan::software_json(scenario.step.software);
  }
  return plan::json_text(out);
}

// The fastest plan of both searches.
void write_best(const std::filesystem::path& out,
                const sim::SearchResult& result,
                const std::vector<Listed>& plans,
                const std::optional<sim::PerBlockPlan>& per_block) {
  const auto write = [&out](const plan::Plan& plan, int64_t batch, int64_t accumulate) {
    write_file_atomically(out, plan::to_json(plan));
    write_stderr("wrote {}; use it with --batch {} --accumulate {}\n", out.string(), batch,
                 accumulate);
  };
  const sim::Found* best = result.best();
  if (per_block && (best == nullptr ||
                    per_block->outcome.figures.duration() < best->outcome.figures.duration())) {
    write(per_block->plan, per_block->candidate.batch, per_block->candidate.accumulate);
  } else if (best != nullptr) {
    write(plans.front().plan, best->candidate.batch, best->candidate.accumulate);
  }
}

void print_summary(const sim::SearchResult& result, bool shows) {
  write_stderr("{}{} plans simulated, {} left out as too large, {}{} in all{}\n",
               shows ? Shown("\r") : Shown(), result.evaluated, result.pruned,
               result.slower > 0 ? show("{} as slower, ", result.slower) : Shown(), result.all,
               result.cancelled ? "; stopped before the end" : "");
  if (result.refused > 0) {
    write_stderr("{} could not be predicted; the first: {}\n", result.refused, result.refusal);
  }
}

std::vector<sim::Precision> precisions_of(const SearchCommand& options) {
  static const std::vector<std::string> kUsual{"fp32", "bf16", "fp16", "bf16/bf16", "fp16/fp16"};
  std::vector<sim::Precision> out;
  for (const std::string& each : options.precisions) {
    const std::optional<sim::Precision> precision = sim::parse_precision(each);
    if (!precision) {
      throw UsageError(
          fmt::format("--precisions {}: expected fp32, bf16 or fp16 parameters, such as bf16, or "
                      "with the dtype of reductions, such as bf16/bf16{}",
                      each, plan::suggestion(each, kUsual)));
    }
    if (std::find(out.begin(), out.end(), *precision) == out.end()) {
      out.push_back(*precision);
    }
  }
  return out;
}

// The meshes that the flags allow.
sim::MeshSpace meshes_of(const SearchCommand& options, const sim::Scenario& scenario) {
  sim::MeshSpace out{
      .context = options.context, .tensor = options.tensor, .expert = options.expert, .only = {}};
  for (const auto& [flag, sizes] :
       {std::pair{"--context", out.context}, {"--tensor", out.tensor}, {"--expert", out.expert}}) {
    for (const int64_t size : sizes) {
      if (size < 1 || scenario.world_size % size != 0) {
        throw UsageError(fmt::format("{} {}: expected divisors of the {} ranks", flag, size,
                                     scenario.world_size));
      }
    }
  }
  if (!options.run.mesh.empty()) {
    const plan::ResolvedPlan plan = scenario.model->resolve(scenario.plan, scenario.world_size);
    out.only = scenario.plan.mesh;
    for (const std::string_view axis : {mesh::kReplicate, mesh::kShard}) {
      plan::set_axis(*out.only, axis, plan.mesh.size(axis));
    }
  }
  return out;
}

ExitCode run(const SearchCommand& options) {
  keep_freed_memory();  // threads plan and simulate thousands of steps of the same sizes
  if (options.memory_limit < 1) {
    throw UsageError(fmt::format("--memory-limit {}: expected at least 1", options.memory_limit));
  }
  if (options.threads > kMostSearchThreads) {
    throw UsageError(
        fmt::format("--threads {}: expected at most {}", options.threads, kMostSearchThreads));
  }
  const std::filesystem::path out = options.outputs.file("--out");
  const std::filesystem::path state_file = options.outputs.file("--state");
  sim::SearchOptions search;
  search.precisions = precisions_of(options);
  const sim::Scenario scenario = scenario_of(options.run, options.scenario);
  const int64_t ranks = scenario.world_size;
  search.memory_limit = options.memory_limit;
  search.threads = options.threads;
  search.meshes = meshes_of(options, scenario);
  const std::optional<DirectoryLock> lock = lock_of_state(state_file);
  std::optional<SearchState> state;
  if (!state_file.empty()) {
    state.emplace(state_file, identity_of(options, scenario));
    search.known = state->known();
  }
  const bool shows = isatty(STDERR_FILENO) == 1;
  search.on_progress = [&](const sim::Found& found, size_t done, size_t all) {
    if (state) {
      state->add(name_of(found.candidate, ranks), found.outcome);
    }
    if (shows && done % 16 == 0) {
      write_stderr("\r{} of at most {} plans", done, all);
    }
  };
  interrupted = false;
  search.cancelled = &interrupted;
  std::signal(SIGINT, interrupt);
  const sim::SearchResult result = sim::search(scenario, search);
  const Bare bare = on_bare_hardware(options, scenario, result, search);
  std::optional<sim::PerBlockPlan> per_block;
  if (options.per_block && !interrupted) {
    const sim::Candidate* start = result.best() == nullptr ? nullptr : &result.best()->candidate;
    sim::Scenario by_block = scenario;
    if (start != nullptr) {
      // On the axes that divide the work as in the fastest plan.
      by_block.plan.mesh = mesh_of(*start, ranks);
      by_block.step.batch = start->batch;
      by_block.step.accumulate = start->accumulate;
    }
    by_block.plan.cpu_offload =
        by_block.plan.cpu_offload || (start != nullptr && start->cpu_offload);
    per_block = sim::search_per_block(by_block, search, start);
  }
  std::signal(SIGINT, SIG_DFL);
  print_summary(result, shows);
  const std::vector<Listed> plans = listed(options, result, scenario);
  const std::vector<sim::MeshReport> meshes =
      sim::mesh_reports(scenario, result, options.memory_limit);
  if (!out.empty()) {
    write_best(out, result, plans, per_block);
  }
  if (options.json) {
    write_data(json_text(result, meshes, plans, bare, per_block, scenario.step.software, ranks));
  } else if (!plans.empty()) {
    print_text(result, meshes, plans, ranks);
    print_machine(options, bare, result, ranks);
  }
  if (options.per_block && !options.json) {
    write_stdout(per_block_text(per_block, ranks));
  }
  const bool found = !plans.empty() || per_block;
  if (!found) {
    write_stderr("no plan {}\n",
                 result.cancelled ? "that fits was found so far" : "fits into the memory limit");
  }
  return result.cancelled || interrupted ? ended_by_signal(SIGINT)
         : found                         ? ExitCode::kOk
                                         : ExitCode::kCheckFailed;
}

}  // namespace

Action add_search_command(CLI::App& app) {
  const auto options = std::make_shared<SearchCommand>();
  app.add_option("--model", options->run.model, "directory with config.json, or a config.json");
  app.add_option("--plan", options->run.plan,
                 "plan file whose dialect, layout and precision the search keeps [fsdp2]");
  CLI::Option* precisions = app.add_option(
      "--precisions", options->precisions,
      "precisions that the search may choose from, which change what the model "
      "computes: fp32, bf16, fp16, or bf16/bf16 (parameters/reduction; the reduction "
      "is otherwise in fp32) [the plan's]");
  precisions->delimiter(',')->allow_extra_args(false)->option_text("LIST");
  add_scenario_options(app, options->run, options->scenario);
  add_step_options(app, options->run);
  precisions->excludes(app.get_option("--precision"));
  CLI::Option* mesh = app.add_option(
      "--mesh", options->run.mesh,
      "the only mesh: RxS, replicas of shards, or axis=size,… [every mesh of the ranks]");
  for (const auto& [flag, sizes, what] :
       {std::tuple{"--context", &options->context, "parts of a sequence"},
        {"--tensor", &options->tensor, "parts of each layer"},
        {"--expert", &options->expert, "parts of the experts"}}) {
    app.add_option(flag, *sizes,
                   fmt::format("numbers of {} that the search may choose from, such as 1,2 [every "
                               "divisor of the ranks]",
                               what))
        ->delimiter(',')
        ->allow_extra_args(false)
        ->option_text("LIST")
        ->excludes(mesh);
  }
  app.add_option("--memory-limit", options->memory_limit,
                 "limit on the memory that the allocator reserves per GPU, such as 80GiB")
      ->required()
      ->transform(CLI::Validator(size_to_bytes, ""))
      ->option_text("SIZE (required)");
  options->outputs.add(app, "--out", "write the fastest plan to this file, a plan for capture");
  options->outputs.add(app, "--state", "save results in this file; if it exists, continue from it");
  app.add_option("--threads", options->threads, "number of concurrent simulations [cores]");
  app.add_flag("--per-block", options->per_block,
               "also search plans whose blocks differ: kept after forward, checkpointed (with what "
               "a checkpoint saves), units of unequal size");
  app.add_flag("--fits", options->fits,
               "also find the largest batch and the longest sequence that fit under each plan that "
               "is listed");
  app.add_flag("--json", options->json, "machine-readable output");
  return [options, &app] {
    take_given(app, options->run, options->scenario);
    return run(*options);
  };
}

}  // namespace shardlens::cli
