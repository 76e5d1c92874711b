#include "cli/capture/probe.h"

#include <array>
#include <span>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/standard_output.h"
#include "core/files/atomic_file.h"
#include "sim/scenario/recorded_run.h"

#include "cli/capture/logged_capture.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kVocabulary = 4096, kBlocks = 2, kHeadDim = 64, kSteps = 8, kWarmup = 3;

struct ProbeRun {
  int64_t hidden = 0, batch = 0, seq = 0;
  const char* strategy = "full_shard";
};

// Sizes whose steps take a second or less. The batch changes one side of the matrix products, the
// width both. Replicated runs measure all-reduces.
constexpr std::array<ProbeRun, 7> kOnCpu{{{128, 2, 64},
                                          {256, 1, 128},
                                          {512, 1, 64},
                                          {512, 2, 128},
                                          {1024, 1, 64},
                                          {256, 1, 64, "replicate"},
                                          {1024, 1, 64, "replicate"}}};
constexpr std::array<ProbeRun, 7> kOnGpu{{{1024, 2, 1024},
                                          {2048, 1, 2048},
                                          {2048, 4, 1024},
                                          {4096, 1, 2048},
                                          {4096, 2, 2048},
                                          {1024, 1, 1024, "replicate"},
                                          {4096, 1, 1024, "replicate"}}};

std::string config_of(const ProbeRun& run) {
  return nlohmann::json{{"model_type", "llama"},
                        {"hidden_size", run.hidden},
                        {"intermediate_size", run.hidden * 11 / 4},
                        {"num_hidden_layers", kBlocks},
                        {"num_attention_heads", run.hidden / kHeadDim},
                        {"num_key_value_heads", run.hidden / kHeadDim},
                        {"vocab_size", kVocabulary},
                        {"max_position_embeddings", run.seq}}
      .dump();
}

// Content of a token file with one byte per token. The values, from 1 to 250, do not matter.
std::string tokens() {
  std::string out(size_t{1} << 16, '\0');
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<char>(1 + i * 7919 % 250);
  }
  return out;
}

}  // namespace

std::vector<sim::Observation> probe(const RunOptions& run, const fs::path& keep) {
  const CaptureFolder folder("--keep", keep);
  const bool gpu = run.device == Device::kCuda;
  RunOptions flags = run;
  flags.tokens = folder.path() / "tokens.txt";
  write_file_atomically(flags.tokens, tokens());
  flags.steps = kSteps;
  flags.warmup = kWarmup;
  std::vector<sim::Observation> out;
  const std::span<const ProbeRun> runs = gpu ? std::span(kOnGpu) : std::span(kOnCpu);
  for (const ProbeRun& each : runs) {
    const std::string name = fmt::format("hidden {}, {} x {} tokens, {}", each.hidden, each.batch,
                                         each.seq, each.strategy);
    write_stderr("probe {} of {}: {}\n", out.size() + 1, runs.size(), name);
    flags.model = folder.path() / fmt::format("{}.json", name);
    write_file_atomically(flags.model, config_of(each));
    flags.out = folder.path() / name;
    flags.strategy = each.strategy;
    const bool replicated = flags.strategy == "replicate";
    flags.precision =
        replicated ? Precision::kFp32 : run.precision;  // replicated units do not support casts
    flags.step.batch = each.batch;
    flags.step.seq = each.seq;
    capture_logged(flags);
    out.push_back(sim::open_observation(flags.out));
    out.back().source = "this machine";
    if (replicated) {
      out.back().diagnostics.clear();  // it is only needed for its collectives
    }
  }
  return out;
}

}  // namespace shardlens::cli
