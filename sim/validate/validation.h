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
  std::string stack;         // whose constants were used
  bool used_to_fit = false;  // the constants have seen it
  // Seconds of a step, and predicted / measured - 1; of rows in scope.
  double measured = 0, predicted = 0, error = 0;
  StepFigures figures;  // of the predicted step
  // GiB, of rows that print it: reserved where the notes say so, otherwise allocated.
  std::optional<double> predicted_peak, peak_error;
  std::string failed;  // why there is no prediction though it is in scope
};

// Over rows in scope that were not used to fit.
struct Validation {
  std::vector<ValidatedRow> rows;
  int64_t counted = 0, used_to_fit = 0;
  double mape = 0, worst = 0;              // mean and largest |error|
  double within_15_percent = 0;            // share of rows
  std::map<std::string, double> spearman;  // by GPU type, of types with ten rows or more
};

// Predicts each run with the constants of its stack, on all cores. Fits nothing.
[[nodiscard]] Validation validate(std::vector<PublishedRun> runs, const FittedStacks& stacks);

// Rank correlation of two series of one length; ties share their rank.
[[nodiscard]] double spearman(const std::vector<double>& x, const std::vector<double>& y);

}  // namespace shardlens::sim
