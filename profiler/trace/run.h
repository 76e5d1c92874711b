#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/plan/resolved_plan.h"
#include "core/plan/workload.h"
#include "profiler/trace/kineto/kineto_reader.h"
#include "profiler/trace/model/trace.h"

namespace shardlens::trace {

// One line of metrics.jsonl.
struct StepMetrics {
  int64_t step = 0;
  std::optional<double> loss, grad_norm, step_ms, tokens_per_s;
};

// What was planned, as far as a capture directory tells.
struct PlannedInputs {
  plan::ResolvedPlan plan;
  plan::Workload workload;  // of a microbatch
  plan::StepSettings settings;
  std::optional<plan::ModelConfig> config;  // nullopt: simulated from something else
};

// All that one run left: what analyses, reports and the app take.
//
// Sources  a capture directory (rank<r>.pt.trace.json.gz or rank<r>.spool, plan.json,
//          workload.json, run.json, metrics.jsonl), a directory of traces, one trace or spool, or
//          several of these.
// Errors   InputError for a path that holds no trace, two traces of one rank, or a trace that
//          cannot be read. What only accompanies the traces (plan, metrics) is left out with a
//          diagnostic when it cannot be read.
struct Run {
  std::string source;         // the paths, for messages
  std::vector<Trace> traces;  // by rank, each with metadata.rank set
  std::optional<PlannedInputs> planned;
  std::string
      plan_problem;  // why a plan.json that is there was not taken; "": it was, or is not there
  std::vector<StepMetrics> metrics;
  std::string environment;  // run.json as text, or ""
  std::vector<Diagnostic> diagnostics;

  [[nodiscard]] static Run open(const std::filesystem::path& path, const ReadOptions& options = {});
  [[nodiscard]] static Run open(std::span<const std::filesystem::path> paths,
                                const ReadOptions& options = {});
  // Of traces in memory (tests, the simulator); missing ranks are numbered as open() does.
  [[nodiscard]] static Run of(std::vector<Trace> traces);
};

// Traces and spools of a directory, by name (a spool only where its rank left no trace), or the
// path of a file itself. Errors: InputError for a directory that holds none.
[[nodiscard]] std::vector<std::filesystem::path> trace_paths(const std::filesystem::path& path);

// Reads all of them, as many at a time as there are cores; in the order of `paths`.
[[nodiscard]] std::vector<Trace> read_traces(std::span<const std::filesystem::path> paths,
                                             const ReadOptions& options = {});

// A trace file or a spool, told by its name.
[[nodiscard]] Trace read_trace(const std::filesystem::path& path, const ReadOptions& options = {});

}  // namespace shardlens::trace
