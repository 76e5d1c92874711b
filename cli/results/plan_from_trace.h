#pragma once

#include <filesystem>
#include <vector>

#include "core/base/error.h"

#include "cli/flags/outputs.h"

namespace shardlens::cli {

struct PlanFromTraceOptions {
  std::vector<std::filesystem::path> traces;
  const Outputs* outputs = nullptr;  // --out: directory for plan.json and workload.json
  std::filesystem::path model;       // gives names to units; "": the trace's names
  bool json = false;
  bool parameters = false;  // the elements of each parameter on each rank
};

// `shardlens plan --from-trace`: prints the plan under which a trace was recorded.
// Errors: InputError for traces without FSDP's ranges, or of a model other than `model`;
// UsageError for `parameters` if there is neither a model nor a capture.
ExitCode plan_from_trace(const PlanFromTraceOptions& options);

}  // namespace shardlens::cli
