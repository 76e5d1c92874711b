#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/hardware/hardware_spec.h"

namespace shardlens::sim {

// One measured curve of a table: a collective between so many GPUs, as one source printed it.
struct MeasuredCurve {
  std::string source, gpu, algorithm;
  CollectiveCurve curve;
};

// Reads a comma-separated file with the columns source, gpu, n_gpus, collective, algo, size_bytes,
// time_us, busbw_GBs, in any order; others are ignored. Times are those printed, else those that
// the bus bandwidth implies; of several rows of a size the median. Rows of other collectives,
// without a size in figures ("peak") or without either time are left out.
//
// Errors      InputError with file, line and column.
[[nodiscard]] std::vector<MeasuredCurve> parse_collective_tables(std::string_view text,
                                                                 const std::string& source);
[[nodiscard]] std::vector<MeasuredCurve> load_collective_tables(const std::filesystem::path& path);

// The mean of |error| over some sizes; nullopt: over none.
struct MeanError {
  int sizes = 0;
  std::optional<double> mean;
};

// How far off a curve is at sizes that were not used, from 1 MiB up.
struct CurveError {
  MeasuredCurve measured;
  // Each size but the first and the last from the curve's others: a gap wider than any in use. The
  // same from 64 MiB up, where latencies and changes of protocol count for little.
  MeanError left_out, left_out_large;
  // The specs' own curve at the sizes that it has no point of.
  std::string spec;  // "": none is of this GPU
  MeanError unseen;
};
[[nodiscard]] std::vector<CurveError> collective_errors(std::vector<MeasuredCurve> curves);

}  // namespace shardlens::sim
