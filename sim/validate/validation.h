#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/hardware/stacks.h"
#include "sim/scenario/scenario.h"
#include "sim/validate/published_runs.h"

namespace shardlens::sim {

struct ValidatedRow {
  PublishedRun run;
  std::string stack;         // the stack whose constants were used
  bool used_to_fit = false;  // the stack's constants were fitted to this row
  // Seconds per step, and predicted / measured - 1; only for rows in scope.
  double measured = 0, predicted = 0, error = 0;
  StepFigures figures;  // of the predicted step
  // GiB, for rows with a measured peak: reserved if the notes mention it, otherwise allocated.
  std::optional<double> predicted_peak, peak_error;
  std::string failed;  // why a row in scope has no prediction; "": it has one
};

// Statistics over rows in scope that were not used for fitting.
struct Validation {
  std::vector<ValidatedRow> rows;
  int64_t counted = 0, used_to_fit = 0;
  double mape = 0, worst = 0;              // mean and largest |error|
  double within_15_percent = 0;            // share of rows
  std::map<std::string, double> spearman;  // by GPU type, for types with ten rows or more
};

// Predicts each run with the constants of its stack, on all cores. Does not fit anything.
[[nodiscard]] Validation validate(std::vector<PublishedRun> runs, const FittedStacks& stacks);

// Rank correlation of two series of the same length; ties share their rank.
[[nodiscard]] double spearman(const std::vector<double>& x, const std::vector<double>& y);

}  // namespace shardlens::sim
