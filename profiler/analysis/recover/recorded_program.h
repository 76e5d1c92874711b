#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "core/plan/resolved_plan.h"
#include "profiler/analysis/fsdp_log/host_log.h"
#include "profiler/analysis/recover/recovered_plan.h"
#include "profiler/trace/run.h"

// Runs of shardlens.record: their plan and model are known (trace::Run::program), and what they ran
// is found in their traces.
namespace shardlens::analysis {

// One pass of the program: that of the trace's passes whose modules ran in the most common order,
// the last of these. Its units are those of `plan`, by index. Sizes of operators are known if the
// trace was read with ReadOptions::keep_args. `host`: of the trace.
//
// Errors  InputError for a trace without FSDP's ranges, without a pass with forward and backward,
//         or with a unit that the plan has not.
[[nodiscard]] RecoveredWorkload recorded_pass(const trace::Trace& trace,
                                              const HostLog& host,
                                              const plan::ResolvedPlan& plan,
                                              std::vector<trace::Diagnostic>& diagnostics);

// The index into FsdpLog::units of each unit of the plan; units that did not run are added to the
// log. Errors: InputError as recorded_pass().
[[nodiscard]] std::vector<uint32_t> log_units_of(const trace::Trace& trace,
                                                 const plan::ResolvedPlan& plan,
                                                 FsdpLog& log);

// The plan by whose order captured collectives are found: `planned`, or without it `program`;
// nullptr: the run has neither.
[[nodiscard]] const trace::PlannedInputs* plan_of(const trace::Run& run);

// A run of shardlens.record whose plan has not been found yet.
[[nodiscard]] bool lacks_planned(const trace::Run& run);

// The pass that the workload of a run is from, and what could not be read of it.
struct RecordedPass {
  RecoveredWorkload recovered;
  std::vector<trace::Diagnostic> diagnostics;
};
// Sets `planned` of a run that lacks it from `program` and the first rank's trace, whose log `host`
// is. Where that is not possible, plan_problem and a diagnostic say why. nullopt: the plan has no
// sharded units, or was not found.
std::optional<RecordedPass> find_planned(trace::Run& run, const HostLog& host);

// Run::open() and find_planned(), for a run that is read and not analyzed here; others are opened
// with AnalyzedRun::open(). `prepare`: called with the run in between, for example to set
// `program`.
[[nodiscard]] trace::Run open_run(std::span<const std::filesystem::path> paths,
                                  const trace::ReadOptions& options = {},
                                  const std::function<void(trace::Run&)>& prepare = nullptr);

}  // namespace shardlens::analysis
