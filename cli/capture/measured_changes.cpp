#include "cli/capture/measured_changes.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/atomic_file.h"
#include "core/base/error.h"
#include "sim/scenario/recorded_run.h"

#include "cli/capture/capture_flags.h"
#include "cli/capture/logged_capture.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kRounds = 4;

// Flags of the capture, without --out.
RunOptions recorded_flags(const fs::path& directory, const trace::Run& run) {
  const auto about = nlohmann::json::parse(run.environment, nullptr, false);
  const auto command = about.is_object() ? about.value("command", nlohmann::json()) : about;
  if (!command.is_array() || command.size() < 2 || command[1] != "capture") {
    throw UsageError(
        fmt::format("--measure: {} is not a capture of this program, which could be repeated; run "
                    "the program with the lines of a change under shardlens.record, and compare "
                    "the runs with `shardlens compare`",
                    run.source));
  }
  std::vector<std::string> words;
  for (size_t i = 2; i < command.size(); ++i) {
    const std::string word = command[i].is_string() ? command[i].get<std::string>() : "";
    if (word == "--out") {
      ++i;
    } else if (!word.starts_with("--out=")) {
      words.push_back(word);
    }
  }
  RunOptions out = capture_flags(std::move(words), "--measure");
  std::error_code ignored;  // a path that is too long does not exist either
  if (!fs::exists(out.model, ignored)) {
    out.model = directory;
  }
  if (!fs::exists(out.tokens, ignored)) {
    throw InputError(out.tokens.string(),
                     "the tokens of the capture are no longer there; --measure reads them again");
  }
  return out;
}

Nanoseconds measured_step(const RunOptions& flags) {
  capture_logged(flags);
  return sim::RecordedRun::open(std::span(&flags.out, 1))->baseline().measured;
}

}  // namespace

void measure_changes(const fs::path& directory,
                     const trace::Run& run,
                     size_t count,
                     sim::Advice& advice) {
  const RunOptions own = recorded_flags(directory, run);
  count = std::min(count, advice.changes.size());
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
      fmt::print(stderr, "capture {} of {}: {}\n",
                 static_cast<size_t>(round) * sides.size() + k + 1, kRounds * sides.size(),
                 i == 0 ? "as recorded" : advice.changes[i - 1].title);
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
