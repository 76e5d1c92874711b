#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "sim/scenario/scenario.h"

#include "cli/results/stack_used.h"

namespace shardlens::cli {

// Everything that is printed about one simulated step.
struct SimulatedResult {
  sim::Prediction prediction;
  std::filesystem::path config;  // the model's config.json; "": a PyTorch trace has none
  std::string recorded;          // path of the recorded run, if there is one
  bool few_steps = false;        // on the run's machine, with few recorded steps
  // For a model on a spec: the stack whose constants were used, and the same step without them.
  bool on_spec = false;
  std::optional<StackUsed> stack;
  std::optional<sim::Prediction> bare;
};

// `simulate --json`.
[[nodiscard]] std::string simulated_json(const SimulatedResult& result);
// Prints tables to stdout.
void print_simulated(const SimulatedResult& result);
// Writes a capture directory that analyze reads. The prediction must have its timeline. `force` as
// in prepare_capture_directory().
void write_simulated(const SimulatedResult& result, const std::filesystem::path& out, bool force);

}  // namespace shardlens::cli
