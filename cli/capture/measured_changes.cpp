#include "cli/capture/measured_changes.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/base/standard_output.h"
#include "core/files/atomic_file.h"
#include "sim/scenario/recorded_run.h"

#include "cli/capture/logged_capture.h"
#include "cli/capture/repeated_capture.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kRounds = 4;
constexpr std::chrono::minutes kLongestCapture{10};

// Also prints what will run, because the flags come from a file.
RunOptions announced_flags(const fs::path& directory, const trace::Run& run, size_t captures) {
  const auto [recorded, left_out] =
      repeated_capture(run.environment, run.source, run.traces.size(), "--measure");
  RunOptions out = recorded;
  std::error_code ignored;  // a path that is too long does not exist either
  if (!fs::exists(out.model, ignored)) {
    out.model = directory;
  }
  if (!fs::exists(out.tokens, ignored)) {
    throw InputError(out.tokens.string(),
                     "the tokens of the capture are no longer there; --measure reads them again");
  }
  write_stderr(
      "{} captures to a temporary directory, each at most {} minutes:\n"
      "  shardlens capture {}\n",
      captures, kLongestCapture.count(), fmt::format("{}", fmt::join(to_arguments(out), " ")));
  if (!left_out.empty()) {
    write_stderr("not as recorded: {}\n", fmt::format("{}", fmt::join(left_out, " ")));
  }
  return out;
}

Nanoseconds measured_step(const RunOptions& flags) {
  capture_logged(flags, kLongestCapture);
  return sim::RecordedRun::open(std::span(&flags.out, 1))->baseline().measured;
}

}  // namespace

void measure_changes(const fs::path& directory,
                     const trace::Run& run,
                     size_t count,
                     sim::Advice& advice) {
  count = std::min(count, advice.changes.size());
  const RunOptions own = announced_flags(directory, run, kRounds * (count + 1));
  const CaptureFolder folder("--measure", {});
  // The baseline, then the changes, as flags.
  std::vector<RunOptions> sides(count + 1, own);
  for (size_t i = 0; i < count; ++i) {
    const sim::AdvisedChange& change = advice.changes[i];
    RunOptions& flags = sides[i + 1];
    flags.plan = folder.path() / fmt::format("change-{}.json", i + 1);
    write_file_atomically(flags.plan, plan::to_json(change.plan));
    flags.mesh.clear();
    flags.step.batch = change.step.batch;
    flags.step.accumulate = change.step.accumulate;
    flags.step.sync_every_microbatch = change.step.sync_every_microbatch;
  }
  std::vector<std::vector<double>> differences(count);
  std::vector<Nanoseconds> steps(sides.size());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t k = 0; k < sides.size(); ++k) {
      const size_t i = round % 2 == 0 ? k : sides.size() - 1 - k;
      write_stderr("capture {} of {}: {}\n", static_cast<size_t>(round) * sides.size() + k + 1,
                   kRounds * sides.size(), i == 0 ? "as recorded" : advice.changes[i - 1].title);
      RunOptions flags = sides[i];
      flags.out = folder.path() / fmt::format("{}-{}", i, round);
      steps[i] = measured_step(flags);
    }
    for (size_t i = 0; i < count; ++i) {
      differences[i].push_back(static_cast<double>(steps[i + 1] - steps[0]));
    }
  }
  for (size_t i = 0; i < count; ++i) {
    double mean = 0, squares = 0;
    for (const double each : differences[i]) {
      mean += each / kRounds;
    }
    for (const double each : differences[i]) {
      squares += (each - mean) * (each - mean);
    }
    advice.changes[i].measured_change = std::llround(mean);
    advice.changes[i].measured_error = std::llround(std::sqrt(squares / (kRounds - 1) / kRounds));
  }
}

}  // namespace shardlens::cli
