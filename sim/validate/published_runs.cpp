#include "sim/validate/published_runs.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include <fmt/format.h>

#include "core/json/json_reader.h"
#include "core/model/families/config_values.h"
#include "core/plan/plan.h"
#include "core/workload/step_limits.h"
#include "sim/validate/csv_table.h"

namespace shardlens::sim {
namespace {

constexpr std::array kRunColumns{
    "source",   "model", "params",   "n_layers",      "hidden",     "ffn",          "heads",
    "kv_heads", "vocab", "seq_len",  "gpus",          "microbatch", "gpu_type",     "grad_accum",
    "strategy", "dtype", "act_ckpt", "torch_compile", "notes",      "tokens_s_gpu", "peak_mem_GiB"};

// See load_published_runs().
void complete_shape(plan::DecoderShape& shape, int64_t seq, std::optional<int64_t> parameters) {
  constexpr int64_t kUngatedWidth = 4;
  const plan::DecoderShape given = shape;
  shape.gated = given.ffn != kUngatedWidth * given.hidden;
  if (!parameters) {
    return;
  }
  int64_t nearest = -1;
  for (int bits = 0; bits < 16; ++bits) {
    plan::DecoderShape tried = given;
    tried.gated = (bits & 1) != 0;
    tried.tied = (bits & 2) != 0;
    tried.bias = (bits & 4) != 0;
    tried.positions = (bits & 8) != 0 ? seq : 0;
    const int64_t off = std::abs(plan::parameter_count(tried) - *parameters);
    if (nearest < 0 || off < nearest) {
      nearest = off;
      shape = tried;
    }
  }
}

std::string scope(const CsvRow& row, const PublishedRun& run) {
  if (row.text("dtype") != "bf16") {
    return row.text("dtype").empty() ? "its dtype is unknown" : row.text("dtype");
  }
  const std::string& compiled = row.text("torch_compile");
  if (compiled != "n" && !compiled.empty()) {
    return compiled == "y" ? "torch.compile" : "compiled by " + compiled;
  }
  if (run.strategy.find("CP") != std::string::npos) {
    return "context parallelism";
  }
  if (run.strategy != "FULL_SHARD" && run.strategy != "SHARD_GRAD_OP") {
    return fmt::format("strategy '{}'", run.strategy);
  }
  return "";
}

std::optional<Checkpointing> checkpointing_of(const std::string& text) {
  return text == "full"        ? std::optional(Checkpointing::kFull)
         : text == "selective" ? std::optional(Checkpointing::kSelective)
         : text == "none"      ? std::optional(Checkpointing::kNone)
                               : std::nullopt;
}

PublishedRun read_run(const CsvRow& row) {
  PublishedRun run;
  run.row = row.line();
  run.source = row.text("source");
  run.model = row.text("model");
  run.gpu_type = row.text("gpu_type");
  run.strategy = row.text("strategy");
  run.notes = row.text("notes");
  run.identity = fmt::format("{}; {}; seq {}; {} x {}; {} {}; {} {} {}; {} tokens/s", run.source,
                             run.model, row.text("seq_len"), row.text("microbatch"),
                             row.text("grad_accum"), row.text("gpus"), run.gpu_type, run.strategy,
                             row.text("dtype"), row.text("act_ckpt"), row.text("tokens_s_gpu"));
  run.tokens_per_s_gpu = row.number("tokens_s_gpu").value_or(0);
  run.peak_gib = row.number("peak_mem_GiB");
  // The table has the numbers as published; some are in units of 1e9 bytes.
  if (run.peak_gib &&
      (run.notes.find("(GB)") != std::string::npos || run.notes.ends_with("memory GB"))) {
    *run.peak_gib *= 1e9 / (1024.0 * 1024 * 1024);
  }
  run.out_of_scope = scope(row, run);
  const auto checkpointing = checkpointing_of(row.text("act_ckpt"));
  run.checkpointing = checkpointing.value_or(Checkpointing::kNone);
  bool complete = checkpointing.has_value() && run.tokens_per_s_gpu > 0;
  struct Size {
    const char* column;
    int64_t* value;
    int64_t most;  // so that the number of parameters fits in 64 bits
  };
  const Size sizes[] = {{"n_layers", &run.shape.layers, plan::kLargestLayers},
                        {"hidden", &run.shape.hidden, plan::kLargestWidth},
                        {"ffn", &run.shape.ffn, plan::kLargestWidth},
                        {"heads", &run.shape.heads, plan::kLargestWidth},
                        {"vocab", &run.shape.vocab, plan::kLargestVocabulary},
                        {"seq_len", &run.seq, plan::kLongestSample},
                        {"microbatch", &run.microbatch, plan::kMostSamples},
                        {"gpus", &run.gpus, plan::kMostRanks}};
  for (const Size& size : sizes) {
    *size.value = row.size(size.column, size.most).value_or(0);
    complete = complete && *size.value > 0;
  }
  const int64_t heads = run.shape.heads;
  run.shape.kv_heads =
      row.size("kv_heads", heads > 0 ? heads : plan::kLargestWidth).value_or(heads);
  run.accumulate = row.size("grad_accum", plan::kMostMicrobatches).value_or(1);
  if (!complete || run.shape.hidden % run.shape.heads != 0) {
    run.out_of_scope = run.out_of_scope.empty() ? "sizes are missing" : run.out_of_scope;
    return run;
  }
  complete_shape(run.shape, run.seq, row.size("params"));
  return run;
}

}  // namespace

std::vector<PublishedRun> parse_published_runs(std::string_view text, const std::string& source) {
  std::vector<PublishedRun> runs;
  for (const CsvRow& row : parse_csv(text, source, kRunColumns)) {
    runs.push_back(read_run(row));
  }
  return runs;
}

std::vector<PublishedRun> load_published_runs(const std::filesystem::path& path) {
  return parse_published_runs(plan::read_text_file(path), path.string());
}

}  // namespace shardlens::sim
