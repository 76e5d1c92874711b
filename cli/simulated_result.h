#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/plan/plan.h"
#include "core/plan/workload.h"
#include "sim/calibrate/replay.h"
#include "sim/predict/predict.h"

namespace shardlens::cli {

// Everything that is said about one simulated step.
struct SimulatedResult {
  plan::ResolvedPlan plan;
  plan::Workload workload;
  std::filesystem::path config;  // the model's config.json; "": a PyTorch trace has none
  int64_t accumulate = 1;
  bool no_sync = false;
  std::string machine;  // its name
  Bytes memory = 0;     // of a GPU; 0: not known
  sim::HostMode host = sim::HostMode::kAhead;
  sim::Prediction prediction;
  std::optional<double> mfu;  // nullopt: no spec, so no peak
  // Of a recorded run: what it was, and how well its own plan is simulated.
  std::string recorded;
  int64_t recorded_steps = 0;
  std::optional<sim::Baseline> baseline;
};

// `simulate --json`.
[[nodiscard]] std::string simulated_json(const SimulatedResult& result);
// Tables on stdout.
void print_simulated(const SimulatedResult& result);
// A capture directory that analyze reads.
void write_simulated(const SimulatedResult& result, const std::filesystem::path& out);

}  // namespace shardlens::cli
