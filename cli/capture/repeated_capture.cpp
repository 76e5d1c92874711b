#include "cli/capture/repeated_capture.h"

#include <algorithm>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"

#include "cli/capture/capture_flags.h"

namespace shardlens::cli {
namespace {

constexpr int64_t kMostStepsOfRun = 100;
constexpr int64_t kMostWarmup = 20;  // so that steps are left
constexpr int64_t kLongestRunTimeout = 300;

// Only what is named here is taken over.
RunOptions of_a_step(const RunOptions& recorded) {
  RunOptions out;
  out.model = recorded.model;
  out.tokens = recorded.tokens;
  out.plan = recorded.plan;
  out.strategy = recorded.strategy;
  out.mesh = recorded.mesh;
  out.nproc = recorded.nproc;
  out.device = recorded.device;
  out.backend = recorded.backend;
  out.world_size = recorded.world_size;
  out.rank = recorded.rank;
  out.hardware = recorded.hardware;
  out.steps = std::min(recorded.steps, kMostStepsOfRun);
  out.warmup = std::min(recorded.warmup, kMostWarmup);
  out.step = recorded.step;
  out.lr = recorded.lr;
  out.weight_decay = recorded.weight_decay;
  out.norm_type = recorded.norm_type;
  out.loss_scale = recorded.loss_scale;
  out.loss_scale_interval = recorded.loss_scale_interval;
  out.precision = recorded.precision;
  out.seed = recorded.seed;
  out.threads =
      std::min(recorded.threads, std::max<int64_t>(1, std::thread::hardware_concurrency()));
  out.timeout = std::min(recorded.timeout, kLongestRunTimeout);
  out.force_collectives = recorded.force_collectives;
  return out;
}

// The flags of a command, each with its value.
std::vector<std::string> flags_of(const RunOptions& options) {
  std::vector<std::string> out;
  for (const std::string& word : to_arguments(options)) {
    if (word.starts_with("--") || out.empty()) {
      out.push_back(word);
    } else {
      out.back() += " " + word;
    }
  }
  return out;
}

}  // namespace

RepeatedCapture repeated_capture(std::string_view run_json,
                                 const std::string& source,
                                 size_t ranks,
                                 std::string_view flag) {
  const auto about = nlohmann::json::parse(run_json, nullptr, false);
  const auto command = about.is_object() ? about.value("command", nlohmann::json()) : about;
  if (!command.is_array() || command.size() < 2 || command[1] != "capture") {
    throw UsageError(fmt::format(
        "{}: {} is not a capture of this program, which could be repeated; run the program with "
        "the lines of a change under shardlens.record, and compare the runs with `shardlens "
        "compare`",
        flag, source));
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
  RunOptions recorded = capture_flags(std::move(words), flag);
  recorded.out.clear();
  if (backend_of(recorded) != Backend::kEmulated && recorded.nproc > static_cast<int64_t>(ranks)) {
    throw UsageError(fmt::format(
        "{}: {} has the traces of {} ranks, but its run.json says --nproc {}: a capture of all its "
        "ranks is expected",
        flag, source, ranks, recorded.nproc));
  }
  RepeatedCapture out{of_a_step(recorded), {}};
  const std::vector<std::string> kept = flags_of(out.options);
  for (std::string& each : flags_of(recorded)) {
    if (std::find(kept.begin(), kept.end(), each) == kept.end()) {
      out.left_out.push_back(std::move(each));
    }
  }
  return out;
}

}  // namespace shardlens::cli
