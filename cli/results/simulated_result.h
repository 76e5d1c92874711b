#pragma once

#include <filesystem>
#include <string>

#include "sim/scenario/scenario.h"

namespace shardlens::cli {

// Everything that is said about one simulated step.
struct SimulatedResult {
  sim::Prediction prediction;
  std::filesystem::path config;  // the model's config.json; "": a PyTorch trace has none
  // Of a recorded run: where it is, and of how many steps it tells.
  std::string recorded;
  int64_t recorded_steps = 0;
};

// `simulate --json`.
[[nodiscard]] std::string simulated_json(const SimulatedResult& result);
// Tables on stdout.
void print_simulated(const SimulatedResult& result);
// A capture directory that analyze reads. The prediction needs its timeline.
void write_simulated(const SimulatedResult& result, const std::filesystem::path& out);

}  // namespace shardlens::cli
