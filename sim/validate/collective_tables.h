#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/hardware/hardware_spec.h"

namespace shardlens::sim {

// One measured curve of a table: one collective between `curve.ranks` GPUs, from one source.
struct MeasuredCurve {
  std::string source, gpu, algorithm;
  CollectiveCurve curve;
};

// Reads a comma-separated file with the columns source, gpu, n_gpus, collective, algo, size_bytes,
// time_us, busbw_GBs, in any order; others are ignored. If time_us is empty, the time is computed
// from the bus bandwidth. Several rows of one size give their median. Rows of other collectives,
// with a size that is not a number ("peak"), or with neither time nor bandwidth are left out.
//
// Errors      InputError with file, line and column.
struct CollectiveTable {
  std::vector<MeasuredCurve> curves;
  int64_t rows = 0;
  std::vector<std::string> left_out;  // "FILE:LINE: why" of each row that is in no curve
};
[[nodiscard]] CollectiveTable parse_collective_table(std::string_view text,
                                                     const std::string& source);
[[nodiscard]] CollectiveTable load_collective_table(const std::filesystem::path& path);

// The mean of |error| over several sizes; nullopt: no sizes.
struct MeanError {
  int sizes = 0;
  std::optional<double> mean;
};

// Errors of a curve at sizes that were not used, from 1 MiB up.
struct CurveError {
  MeasuredCurve measured;
  // Each size, except the first and the last, predicted from the curve's other points. The gap that
  // is interpolated is then wider than in actual use. `left_out_large`: only sizes from 64 MiB up,
  // where latencies and changes of protocol matter little.
  MeanError left_out, left_out_large;
  // The built-in spec of this GPU, and the error of its curve at sizes that it has no point for.
  std::string spec;  // "": no spec has this GPU and curve
  MeanError unseen;
};
[[nodiscard]] std::vector<CurveError> collective_errors(std::vector<MeasuredCurve> curves);

}  // namespace shardlens::sim
