#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/hardware/stacks.h"
#include "sim/scenario/scenario.h"
#include "sim/validate/published_runs.h"

namespace shardlens::sim {

struct PredictedSeconds {  // of a step, with its 90 % interval
  double step = 0, low = 0, high = 0;
};

struct ValidatedRow {  // a published run, measured and predicted
  PublishedRun run;
  std::string stack;         // the stack whose constants were used
  bool used_to_fit = false;  // the stack's constants were fitted to this row
  // Seconds per step, and predicted / measured - 1; only for rows in scope.
  double measured = 0, predicted = 0, error = 0;
  PredictedSeconds interval;  // around `predicted`
  StepFigures figures;        // of the predicted step
  // GiB, for rows with a measured peak: reserved if the notes mention it, otherwise allocated.
  std::optional<double> predicted_peak, peak_error;
  // Seconds per step with constants that were not fitted to any run of the row's code base: those
  // of `left_out_stack`, the nearest one; "": no others were fitted, so those that were assumed
  // before any fit.
  PredictedSeconds left_out;
  std::string left_out_stack;
  // With constants that were not fitted to the row's stack, which is left out with the stacks that
  // take constants from it: those of the nearest other one.
  PredictedSeconds other_stack;
  double peak_flops = 0;  // of the GPU, per second
  std::string failed;     // why a row in scope has no prediction; "": it has one
};

// Mean errors of one way of predicting, over rows for which it has a prediction.
struct MeanErrors {
  std::string name;  // "simulator", name_of(SimpleModel)
  int64_t rows = 0;
  double relative = 0;  // |predicted / measured - 1|
  double logarithmic =
      0;  // |log(predicted / measured)|, for which half and twice are equally wrong
};

// Every row in scope of one code base, predicted from other code bases' rows.
struct LeftOut {
  std::string code_base;               // "owner/repository"
  std::vector<std::string> constants;  // of the simulator: stacks, or "bare hardware"
  std::vector<MeanErrors> errors;      // the simulator, then each SimpleModel
};

// How often 90 % intervals hold what was measured.
struct Coverage {
  std::string name;
  int64_t rows = 0, inside = 0;
  double median_error = 0;       // |predicted / measured - 1|
  double median_half_width = 0;  // root of high / low, less 1
};

// Statistics over rows in scope that were not used for fitting.
struct Validation {
  std::vector<ValidatedRow> rows;
  int64_t counted = 0, used_to_fit = 0;
  double mape = 0, worst = 0;              // mean and largest |error|
  double within_15_percent = 0;            // share of rows
  std::map<std::string, double> spearman;  // by GPU type, for types with ten rows or more
  // The simulator, then simple models that are fitted to the same rows as its constants.
  std::vector<MeanErrors> errors;
  std::vector<LeftOut> left_out;  // by code base
  // Coverage of rows that were not used to fit; of all rows with their code base, and with their
  // stack left out.
  std::vector<Coverage> coverage;
};

// Predicts each run with the constants of its stack, on all cores. Does not fit anything.
// Intervals take most of the time. Without them `low` and `high` are the step itself, and there is
// no coverage.
[[nodiscard]] Validation validate(std::vector<PublishedRun> runs,
                                  const FittedStacks& stacks,
                                  bool intervals = true);

// The repository of a run's source: "owner/name" of "owner/name:path" or of a GitHub address.
[[nodiscard]] std::string code_base_of(std::string_view source);

// Rank correlation of two series of the same length; ties share their rank.
[[nodiscard]] double spearman(const std::vector<double>& x, const std::vector<double>& y);

}  // namespace shardlens::sim
