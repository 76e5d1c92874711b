#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "sim/scenario/largest_step.h"

namespace shardlens::cli {

// The largest steps of a plan that fit: with more samples, and with longer ones.
struct LargestSteps {
  sim::Scenario scenario;
  Bytes limit = 0;  // --memory-limit; 0: the machine's only
  sim::LargestStep batch, sequence;
};

// Shows what it tries on stderr if that is a terminal. Errors: as sim::largest_step().
[[nodiscard]] LargestSteps largest_steps(const sim::Scenario& scenario, Bytes limit);

// "12", "none", "at least 1,048,576", or "-" where the size cannot be changed.
[[nodiscard]] std::string largest_text(const sim::LargestStep& step);
// {"batch", "sequence"}: `fits` of search --json.
[[nodiscard]] nlohmann::ordered_json fits_json(const LargestSteps& steps);
// `simulate --fits --json`.
[[nodiscard]] std::string largest_steps_json(const LargestSteps& steps);
// Prints tables to stdout.
void print_largest_steps(const LargestSteps& steps);

}  // namespace shardlens::cli
