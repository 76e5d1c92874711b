#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/decoder.h"

namespace shardlens::sim {

enum class Checkpointing : uint8_t { kNone, kSelective, kFull };

// One row of a table of published training runs.
struct PublishedRun {
  int64_t row = 0;  // line number in the file; the header is line 1
  std::string source, model, gpu_type, strategy, notes;
  // Source, model, sizes, GPUs and measured throughput; does not depend on the row's file.
  std::string identity;
  plan::DecoderShape shape;
  int64_t seq = 0, microbatch = 0, accumulate = 1, gpus = 0;
  Checkpointing checkpointing = Checkpointing::kNone;
  double tokens_per_s_gpu = 0;
  std::optional<double> peak_gib;
  // Why the simulator does not model the run: "fp8", "torch.compile", …; empty: it does.
  std::string out_of_scope;

  [[nodiscard]] double step_seconds() const {
    return static_cast<double>(seq * microbatch * accumulate) / tokens_per_s_gpu;
  }
};

// Reads a comma-separated file with the columns of docs/reference/simulator_accuracy.md, in any
// order; others are ignored.
//
// A table does not state whether a decoder is gated, tied, has learned positions or biases. The
// combination is chosen whose number of parameters is nearest to the row's. If the row has no
// number of parameters, only an MLP four times as wide as the model is assumed to be ungated.
//
// Errors: InputError with file, line and column.
[[nodiscard]] std::vector<PublishedRun> load_published_runs(const std::filesystem::path& path);
[[nodiscard]] std::vector<PublishedRun> parse_published_runs(std::string_view text,
                                                             const std::string& source);

}  // namespace shardlens::sim
