#pragma once

#include <filesystem>
#include <string>

#include "sim/scenario/scenario.h"

namespace shardlens::cli {

// Everything that is printed about one simulated step.
struct SimulatedResult {
  sim::Prediction prediction;
  std::filesystem::path config;  // the model's config.json; "": a PyTorch trace has none
  // For a recorded run: its path and the number of its measured steps.
  std::string recorded;
  int64_t recorded_steps = 0;
};

// `simulate --json`.
[[nodiscard]] std::string simulated_json(const SimulatedResult& result);
// Prints tables to stdout.
void print_simulated(const SimulatedResult& result);
// Writes a capture directory that analyze reads. The prediction must have its timeline.
void write_simulated(const SimulatedResult& result, const std::filesystem::path& out);

}  // namespace shardlens::cli
