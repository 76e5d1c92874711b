#pragma once

#include <filesystem>
#include <vector>

#include "core/base/error.h"

namespace shardlens::cli {

struct PlanFromTraceOptions {
  std::vector<std::filesystem::path> traces;
  std::filesystem::path out;    // directory for plan.json and workload.json; "": only shown
  std::filesystem::path model;  // "": names as the trace has them
  bool json = false;
  bool parameters = false;  // who holds what of each: of `model`, or of a capture's own
};

// `shardlens plan --from-trace`: the plan under which a trace was recorded.
// Errors: InputError for traces without FSDP's ranges, or of another model than `model`;
// UsageError for `parameters` of a trace that comes without a model.
ExitCode plan_from_trace(const PlanFromTraceOptions& options);

}  // namespace shardlens::cli
