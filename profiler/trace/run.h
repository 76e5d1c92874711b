#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/model/model_config.h"
#include "core/plan/resolved_plan.h"
#include "core/workload/workload.h"
#include "profiler/trace/kineto/kineto_reader.h"
#include "profiler/trace/metrics_file.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::trace {

// The inputs of the plan, as far as the capture directory contains them.
struct PlannedInputs {
  plan::ResolvedPlan plan;
  plan::Workload workload;  // one microbatch
  plan::StepSettings settings;
  // nullopt: the simulation was not made from a model config.
  std::optional<plan::ModelConfig> config;
  // Written by shardlens.record: the workload has the hooks and operators of a recorded step, and
  // sizes of operators only if the traces' arguments were kept. `config` has no step of its own.
  bool recorded = false;
};

// All data of one run: the input of analyses, reports and the app.
//
// Sources  a capture directory (rank<r>.pt.trace.json.gz or rank<r>.spool, plan.json,
//          workload.json, run.json, metrics.jsonl), a run of shardlens.record (model.json instead
//          of workload.json), a directory of traces, one trace or spool, or several of these.
// Errors   InputError for a path that contains no trace, two traces of one rank, or a trace that
//          cannot be read. Files other than traces (plan, metrics) that cannot be read are left out
//          with a diagnostic; so are files of a directory that are no traces, if it has traces too.
struct Run {
  std::string source;         // the paths, for messages
  std::vector<Trace> traces;  // by rank, each with metadata.rank set
  std::optional<PlannedInputs> planned;
  // Plan, model and settings of a run of shardlens.record, without its workload:
  // analysis::open_run() finds that in the traces and sets `planned`.
  std::optional<PlannedInputs> program;
  // Why plan.json was not used, or was not written by the recorder; "": it was used, or nothing
  // says.
  std::string plan_problem;
  std::vector<StepMetrics> metrics;
  std::string environment;  // run.json as text, or ""
  std::vector<Diagnostic> diagnostics;

  [[nodiscard]] static Run open(const std::filesystem::path& path, const ReadOptions& options = {});
  [[nodiscard]] static Run open(std::span<const std::filesystem::path> paths,
                                const ReadOptions& options = {});
  // A run of traces in memory (tests, the simulator); missing ranks are numbered as in open().
  [[nodiscard]] static Run of(std::vector<Trace> traces);
};

// The traces and spools of a directory, sorted by name (a spool only if its rank has no trace), or
// `path` itself if it is a file. Errors: InputError for a directory that contains none.
[[nodiscard]] std::vector<std::filesystem::path> trace_paths(const std::filesystem::path& path);

// A file to be read as a trace.
struct ListedFile {
  std::filesystem::path path;
  bool listed = false;  // found in a directory, not given by name
};
// The files of these paths: directories as trace_paths(), others as they are.
[[nodiscard]] std::vector<ListedFile> listed_files(std::span<const std::filesystem::path> paths);

// Calls read(file) for all files, as many at a time as there are processors. Listed files for which
// it throws NotATrace are left out: the result has their messages. Errors: NotATrace if that leaves
// no file.
[[nodiscard]] std::vector<std::string> for_each_trace(std::span<const ListedFile> files,
                                                      const std::function<void(size_t)>& read);

// Reads a trace file, or an export of Nsight Systems, which has a trace of each process.
[[nodiscard]] std::vector<Trace> read_traces(const std::filesystem::path& path,
                                             const ReadOptions& options = {});
// Reads a trace file or a spool, depending on the ending of its name.
[[nodiscard]] Trace read_trace(const std::filesystem::path& path, const ReadOptions& options = {});

}  // namespace shardlens::trace
