#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "cli/flags/run_options.h"

namespace shardlens::cli {

struct RepeatedCapture {
  RunOptions options;                 // without --out
  std::vector<std::string> left_out;  // flags of the recorded command, with their values
};

// The capture that repeats the one whose run.json this is, for a measurement.
//
// The file may be another person's, so it decides only what a step does: flags about what a run
// saves, continues or waits for are left out, no path is written, and there are no more processes
// than recorded ranks, nor more steps, threads and time than a measurement needs.
//
// Errors  UsageError if the run is not a capture of this program, or its flags are not those of
//         one; messages begin with `flag`. `source` is the run's path.
[[nodiscard]] RepeatedCapture repeated_capture(std::string_view run_json,
                                               const std::string& source,
                                               size_t ranks,
                                               std::string_view flag);

}  // namespace shardlens::cli
