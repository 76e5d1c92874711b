#include "profiler/trace/run.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/files/input_file.h"
#include "core/json/json_fault.h"
#include "core/json/json_reader.h"
#include "core/json/json_values.h"
#include "core/plan/resolve.h"
#include "profiler/trace/actions_file.h"
#include "profiler/trace/bytes/byte_source.h"
#include "profiler/trace/bytes/parallel.h"
#include "profiler/trace/kineto/foreign_files.h"
#include "profiler/trace/metrics_file.h"
#include "profiler/trace/nsight/nsight_reader.h"
#include "profiler/trace/parallel_axes.h"
#include "profiler/trace/program_files.h"
#include "profiler/trace/rank_numbers.h"
#include "profiler/trace/sharded_parameters.h"
#include "profiler/trace/spool/spool_format.h"
#include "profiler/trace/spool/spool_trace.h"

namespace shardlens::trace {
namespace {

namespace fs = std::filesystem;

// More in a run.json are taken for a mistake, not listed.
constexpr int64_t kMostRanks = 1 << 16;

bool is_trace_name(const std::string& name) {
  constexpr std::array<std::string_view, 3> kEndings{".json", ".json.gz", ".json.zst"};
  constexpr std::array<std::string_view, 5> kOthers{"plan.json", "workload.json", "run.json",
                                                    "config.json", "model.json"};
  return std::find(kOthers.begin(), kOthers.end(), name) == kOthers.end() &&
         std::any_of(kEndings.begin(), kEndings.end(),
                     [&](std::string_view end) { return name.ends_with(end); });
}

bool is_spool_name(const std::string& name) {
  return name.ends_with(".spool");
}

// Names the first files of the directory whose kind is known: "; report.nsys-rep is not a trace,
// …".
std::string other_files_of(const fs::path& directory) {
  constexpr size_t kMostNamed = 3;
  std::map<std::string, std::string> found;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    std::string head;
    try {
      if (entry.is_regular_file()) {
        (void)with_head(open_source(entry.path()), kHeadBytes, head);
      }
    } catch (const InputError&) {
      continue;  // a file that cannot be read is not named
    }
    if (const ForeignKind* kind = head.empty() ? nullptr : foreign_kind(name, head)) {
      found.emplace(name, words_of(*kind));
    }
  }
  std::string out;
  size_t named = 0;
  for (const auto& [name, words] : found) {
    if (named++ < kMostNamed) {
      out += fmt::format("; {} is {}", name, words);
    }
  }
  return out;
}

// The traces of a directory; a spool only if its rank has no trace, exports of Nsight Systems only
// if there is nothing else.
std::vector<fs::path> traces_of(const fs::path& directory) {
  std::vector<fs::path> traces, spools, exports;
  std::set<int64_t> ranks;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    std::error_code unreachable;  // a link that leads to itself
    if (!entry.is_regular_file(unreachable)) {
      continue;
    }
    if (is_trace_name(name)) {
      traces.push_back(entry.path());
      if (const auto rank = rank_of_file_name(name)) {
        ranks.insert(*rank);
      }
    } else if (is_spool_name(name)) {
      spools.push_back(entry.path());
    } else if (name.ends_with(".sqlite")) {
      exports.push_back(entry.path());
    }
  }
  if (traces.empty() && spools.empty()) {
    traces = std::move(exports);
  }
  for (const fs::path& spool : spools) {
    const auto rank = rank_of_file_name(spool.filename().string());
    if (!rank || !ranks.contains(*rank)) {
      traces.push_back(spool);
    }
  }
  std::sort(traces.begin(), traces.end());
  if (traces.empty()) {
    throw InputError(directory.string(),
                     "the directory contains no trace: expected *.json, *.json.gz, *.json.zst, "
                     "*.spool or *.sqlite" +
                         other_files_of(directory));
  }
  return traces;
}

// 0 if the size is not known: opening the file will report why.
uint64_t size_of(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return error ? 0 : size;
}

// config.json next to the traces, else the model that run.json names.
fs::path model_of(const fs::path& directory, const nlohmann::json& options) {
  if (has_file(directory / "config.json")) {
    return directory / "config.json";
  }
  return options.value("model", "");
}

// The settings of the step, from the flags of the capture in run.json.
plan::StepSettings read_settings(const plan::JsonNode& options, const plan::Workload& workload) {
  plan::StepSettings out;
  out.batch = workload.batch;
  out.seq = workload.seq;
  out.program = workload.program;
  out.software = workload.software;
  if (const auto accumulate = options.find("accumulate")) {
    out.accumulate = accumulate->integer();
  }
  if (const auto no_sync = options.find("no_sync")) {
    out.sync_every_microbatch = !no_sync->boolean();
  }
  if (const auto optimizer = options.find("optimizer");
      optimizer && optimizer->string() == plan::name_of(plan::Optimizer::kSgd)) {
    out.optimizer = plan::Optimizer::kSgd;
    if (const auto momentum = options.find("momentum")) {
      out.momentum = momentum->number();
    }
  }
  // Simulated runs have these two.
  if (const auto impl = options.find("optimizer_impl");
      impl && impl->string() == plan::name_of(plan::OptimizerImpl::kForeach)) {
    out.optimizer_impl = plan::OptimizerImpl::kForeach;
  }
  if (const auto skew = options.find("expert_skew")) {
    out.expert_skew = skew->number();
  }
  if (const auto clip = options.find("clip"); clip && !clip->is_null()) {
    out.clip = clip->number();
  }
  return out;
}

PlannedInputs read_planned(const fs::path& directory,
                           const nlohmann::json& run,
                           int64_t world_size) {
  const std::string run_json = (directory / "run.json").string();
  const nlohmann::json options = run.value("options", nlohmann::json::object());
  if (!options.is_object()) {
    throw InputError(run_json, "'options' is not an object");
  }
  const fs::path model = model_of(directory, options);
  if (model.empty()) {
    throw InputError(run_json, "names no model");
  }
  PlannedInputs planned;
  planned.config = plan::load_model_config(model);
  planned.plan = plan::resolve(plan::load_plan(directory / "plan.json"),
                               plan::module_tree(*planned.config), world_size);
  const fs::path workload = directory / "workload.json";
  planned.workload =
      plan::parse_workload(plan::read_text_file(workload), workload.string(), planned.plan);
  planned.settings = read_settings(plan::JsonNode(options, run_json), planned.workload);
  plan::require_valid(planned.settings, run_json);
  return planned;
}

// Whether the run has this file; a warning if it is there but is no file.
bool has_companion(const fs::path& path, Run& run) {
  try {
    return has_file(path);
  } catch (const InputError& error) {
    add_diagnostic(run.diagnostics, Severity::kWarning, error.what());
    return false;
  }
}

// The actions that shardlens.record wrote next to each rank's trace.
void read_recorded_actions(const fs::path& directory, Run& run) {
  for (Trace& trace : run.traces) {
    const fs::path path =
        directory / fmt::format("rank{}.actions.jsonl", trace.metadata.rank.value_or(0));
    if (has_companion(path, run)) {
      trace.recorded_actions = read_actions(path, run.diagnostics);
    }
  }
}

// A trace of older versions of PyTorch lists no groups. Those in run.json are of the rank that
// wrote it, so that only those that have this rank too are its own.
void list_groups(std::vector<ProcessGroup> groups, Trace& trace) {
  if (trace.metadata.groups.empty() && trace.metadata.rank) {
    std::erase_if(groups, [&](const ProcessGroup& group) {
      return std::find(group.ranks.begin(), group.ranks.end(), *trace.metadata.rank) ==
             group.ranks.end();
    });
    trace.metadata.groups = std::move(groups);
  }
}

void read_companions(const fs::path& directory, Run& run) {
  read_recorded_actions(directory, run);
  if (has_companion(directory / "metrics.jsonl", run)) {
    run.metrics = read_metrics(directory / "metrics.jsonl", run.diagnostics);
  }
  nlohmann::json environment = nlohmann::json::object();
  if (has_companion(directory / "run.json", run)) {
    const fs::path file = directory / "run.json";
    run.environment = plan::read_text_file(file);
    try {
      environment = plan::parse_json(run.environment, file.string());
    } catch (const InputError& error) {
      add_diagnostic(run.diagnostics, Severity::kWarning, error.what());
      environment = nullptr;
    }
    if (!environment.is_object()) {
      add_diagnostic(run.diagnostics, Severity::kWarning, file.string() + ": not a JSON object");
      environment = nlohmann::json::object();
      run.environment.clear();
    }
  }
  for (Trace& trace : run.traces) {
    list_groups(groups_of_run(run.environment), trace);
    trace.sharded_parameters = sharded_parameters_of_run(run.environment);
  }
  const bool has_plan = has_companion(directory / "plan.json", run);
  for (const std::string& note : notes_of_run(run.environment)) {
    add_diagnostic(run.diagnostics, Severity::kNote, "shardlens.record: " + note);
    if (!has_plan && run.plan_problem.empty() && note.starts_with("no plan.json")) {
      run.plan_problem = note;
    }
  }
  if (!has_plan) {
    return;
  }
  try {
    if (has_file(directory / "workload.json")) {
      run.planned =
          read_planned(directory, environment, run.traces.front().metadata.world_size.value_or(1));
    } else if (has_file(directory / "model.json")) {
      run.program = read_recorded_program(directory, environment, run.traces.front().metadata);
    } else {
      // Not used without a workload or a model, but it must be valid.
      (void)plan::load_plan(directory / "plan.json");
    }
  } catch (const Error& error) {
    run.plan_problem = error.what();
  } catch (const nlohmann::json::exception& error) {
    run.plan_problem = fmt::format("{}: {}", directory.string(), plan::fault_of(error));
  }
  if (!run.plan_problem.empty()) {
    add_diagnostic(run.diagnostics, Severity::kWarning,
                   fmt::format("the planned order is not known: {}", run.plan_problem));
  }
}

// How many ranks run.json says were recorded in this directory: those of the run, or of the node.
int64_t recorded_ranks(const nlohmann::json& environment) {
  const auto size = [](const nlohmann::json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() ? plan::integer_of(*found).value_or(0) : 0;
  };
  const auto options = environment.find("options");
  if (options == environment.end() || !options->is_object()) {
    return size(environment, "world_size");
  }
  return options->value("backend", nlohmann::json()) == "emulated" ? 1 : size(*options, "nproc");
}

// Without the trace of a rank, its collectives are missing, and stragglers may be.
void note_missing_ranks(Run& run) {
  const nlohmann::json environment = nlohmann::json::parse(run.environment, nullptr, false);
  const int64_t ranks = environment.is_object() ? recorded_ranks(environment) : 0;
  if (ranks <= static_cast<int64_t>(run.traces.size()) || ranks > kMostRanks) {
    return;
  }
  std::set<int64_t> missing;
  const int64_t first = *run.traces.front().metadata.rank / ranks * ranks;  // of the node
  for (int64_t rank = first; rank < first + ranks; ++rank) {
    missing.insert(rank);
  }
  for (const Trace& trace : run.traces) {
    missing.erase(*trace.metadata.rank);
  }
  add_diagnostic(run.diagnostics, Severity::kWarning,
                 fmt::format("{} of {} ranks have no trace here: rank {}", missing.size(), ranks,
                             fmt::join(missing, ", ")));
}

void order_by_rank(Run& run) {
  std::map<int64_t, std::string> taken;  // rank → file
  for (const Trace& trace : run.traces) {
    if (!trace.metadata.rank) {
      continue;
    }
    const auto [first, fresh] = taken.emplace(*trace.metadata.rank, trace.metadata.source);
    if (!fresh) {
      throw InputError(
          trace.metadata.source,
          fmt::format("a second trace of rank {}, in addition to {}; open one run at a time",
                      first->first, first->second));
    }
  }
  int64_t next = 0;
  for (Trace& trace : run.traces) {
    if (!trace.metadata.rank) {
      while (taken.contains(next)) {
        ++next;
      }
      taken.emplace(next, trace.metadata.source);
      trace.metadata.rank = next;
      trace.metadata.rank_is_from_name = true;
      add_diagnostic(trace.diagnostics, Severity::kNote, read_as_rank(next));
    }
  }
  std::sort(run.traces.begin(), run.traces.end(),
            [](const Trace& a, const Trace& b) { return *a.metadata.rank < *b.metadata.rank; });
}

}  // namespace

std::string read_as_rank(int64_t rank) {
  return fmt::format("read as rank {}", rank);
}

bool is_unranked(const Trace& trace) {
  return trace.metadata.rank_is_from_name && trace.metadata.rank &&
         std::any_of(trace.diagnostics.begin(), trace.diagnostics.end(), [&](const Diagnostic& d) {
           return d.message == read_as_rank(*trace.metadata.rank);
         });
}

Trace read_trace(const fs::path& path, const ReadOptions& options) {
  if (!is_spool_name(path.filename().string())) {
    return read_kineto(path, options);
  }
  Trace trace = spool_to_trace(read_spool(path));
  if (options.progress != nullptr) {
    options.progress->bytes += size_of(path);
    options.progress->check();
  }
  return trace;
}

std::vector<Trace> read_traces(const fs::path& path, const ReadOptions& options) {
  std::string head;
  std::error_code absent;  // read_trace() says why
  if (!is_spool_name(path.filename().string()) &&
      fs::is_regular_file(path, absent)) {  // not a pipe, whose bytes can be read only once
    (void)with_head(open_source(path), kHeadBytes, head);
  }
  std::vector<Trace> out;
  if (is_sqlite(head)) {
    out = read_nsight(path, options.progress);
    if (options.progress != nullptr) {
      options.progress->bytes += size_of(path);
    }
  } else {
    out.push_back(read_trace(path, options));
  }
  return out;
}

Run Run::of(std::vector<Trace> traces) {
  Run run;
  run.traces = std::move(traces);
  order_by_rank(run);
  return run;
}

Run Run::open(const fs::path& path, const ReadOptions& options) {
  return open(std::span(&path, 1), options);
}

std::vector<ListedFile> listed_files(std::span<const fs::path> paths) {
  std::vector<ListedFile> files;
  for (const fs::path& path : paths) {
    std::error_code error;
    const bool listed = fs::is_directory(path, error);
    for (fs::path& file : trace_paths(path)) {
      files.push_back({std::move(file), listed});
    }
  }
  return files;
}

std::vector<std::string> for_each_trace(std::span<const ListedFile> files,
                                        const std::function<void(size_t)>& read) {
  std::vector<std::string> refused(files.size());
  in_parallel(files.size(), [&](size_t i) {
    try {
      read(i);
    } catch (const NotATrace& error) {
      if (!files[i].listed) {
        throw;
      }
      refused[i] = error.what();
    }
  });
  std::erase(refused, "");
  if (!refused.empty() && refused.size() == files.size()) {
    throw NotATrace("", refused.front());
  }
  return refused;
}

std::vector<fs::path> trace_paths(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error) ? traces_of(path) : std::vector{path};
}

Run Run::open(std::span<const fs::path> paths, const ReadOptions& options) {
  Run run;
  std::vector<fs::path> directories;
  const std::vector<ListedFile> files = listed_files(paths);
  for (const fs::path& path : paths) {
    run.source += (run.source.empty() ? "" : " ") + path.string();
    std::error_code error;
    if (fs::is_directory(path, error)) {
      directories.push_back(path);
    } else {
      const fs::path parent = path.parent_path();
      if (std::find(directories.begin(), directories.end(), parent) == directories.end()) {
        directories.push_back(parent);  // may be a capture directory
      }
    }
  }
  if (files.size() > static_cast<size_t>(kMostRanks)) {
    throw InputError(
        paths.front().string(),
        fmt::format("{} traces, expected those of at most {} ranks", files.size(), kMostRanks));
  }
  if (options.progress != nullptr) {
    uint64_t total = 0;
    for (const ListedFile& file : files) {
      const uint64_t size = size_of(file.path);
      if (size == 0) {  // a pipe
        total = 0;
        break;
      }
      total += size;
    }
    options.progress->total = total;
  }
  if (files.empty()) {
    throw UsageError("no path to a trace or a capture directory was given");
  }
  std::vector<std::vector<Trace>> read(files.size());
  const std::vector<std::string> refused =
      for_each_trace(files, [&](size_t i) { read[i] = read_traces(files[i].path, options); });
  for (std::vector<Trace>& traces : read) {
    std::move(traces.begin(), traces.end(), std::back_inserter(run.traces));
  }
  for (const std::string& message : refused) {
    add_diagnostic(run.diagnostics, Severity::kWarning, "left out: " + message);
  }
  order_by_rank(run);
  if (directories.size() == 1) {
    read_companions(directories.front(), run);
    if (std::find(paths.begin(), paths.end(), directories.front()) != paths.end()) {
      note_missing_ranks(run);
    }
  }
  return run;
}

}  // namespace shardlens::trace
