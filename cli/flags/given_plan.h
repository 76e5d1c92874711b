#pragma once

#include <filesystem>

#include <CLI/App.hpp>

#include "profiler/trace/run.h"

namespace shardlens::cli {

// The plan and the model of traces that came without them.
struct GivenPlan {
  std::filesystem::path model, plan;

  // Makes them the run's plan, in place of one that it came with; nothing without the flags.
  // Errors: InputError for a file that cannot be read and for a plan that does not fit the model or
  // the number of ranks.
  void give(trace::Run& run) const;
};

// Adds --model and --plan, each of which needs the other. `flags` must outlive the parsing.
void add_given_plan(CLI::App& app, GivenPlan& flags);

}  // namespace shardlens::cli
