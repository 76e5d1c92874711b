#include "sim/validate/published_runs.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <unordered_map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/plan/json_reader.h"

namespace shardlens::sim {
namespace {

using Record = std::vector<std::string>;

constexpr std::array kColumns{
    "source",   "model", "params",   "n_layers",      "hidden",     "ffn",          "heads",
    "kv_heads", "vocab", "seq_len",  "gpus",          "microbatch", "gpu_type",     "grad_accum",
    "strategy", "dtype", "act_ckpt", "torch_compile", "notes",      "tokens_s_gpu", "peak_mem_GiB"};

// Records of RFC 4180: a quoted field may hold commas, line ends and doubled quotes.
class Csv {
 public:
  Csv(std::string_view text, const std::string& source) : text_(text), source_(source) {}

  // The next record and the line on which it begins; false at the end.
  bool next(Record& out, int64_t& line) {
    out.clear();
    line = line_;
    if (at_ >= text_.size()) {
      return false;
    }
    for (;;) {
      out.push_back(field());
      if (at_ >= text_.size() || text_[at_] == '\n') {
        ++at_;
        ++line_;
        return true;
      }
      ++at_;  // the comma
    }
  }

 private:
  std::string field() {
    std::string out;
    if (at_ < text_.size() && text_[at_] == '"') {
      const int64_t began = line_;
      ++at_;
      for (;; ++at_) {
        if (at_ >= text_.size()) {
          throw InputError(fmt::format("{}:{}", source_, began), "a quoted field has no end");
        }
        if (text_[at_] == '"') {
          if (at_ + 1 >= text_.size() || text_[at_ + 1] != '"') {
            break;
          }
          ++at_;
        }
        line_ += text_[at_] == '\n' ? 1 : 0;
        out += text_[at_];
      }
      ++at_;
    }
    while (at_ < text_.size() && text_[at_] != ',' && text_[at_] != '\n') {
      out += text_[at_++];
    }
    if (!out.empty() && out.back() == '\r') {
      out.pop_back();
    }
    return out;
  }

  std::string_view text_;
  const std::string& source_;
  size_t at_ = 0;
  int64_t line_ = 1;
};

// A record by column name.
class Row {
 public:
  Row(const Record& record,
      const std::unordered_map<std::string, size_t>& columns,
      std::string where)
      : record_(record), columns_(columns), where_(std::move(where)) {}

  [[nodiscard]] const std::string& text(const char* column) const {
    return record_[columns_.at(column)];
  }
  [[nodiscard]] std::optional<double> number(const char* column) const {
    const std::string& shown = text(column);
    if (shown.empty()) {
      return std::nullopt;
    }
    double value = 0;
    const char* const end = shown.data() + shown.size();
    const auto [stop, error] = std::from_chars(shown.data(), end, value);
    if (error != std::errc{} || stop != end || !std::isfinite(value)) {
      throw InputError(where_,
                       fmt::format("column '{}': expected a number, found '{}'", column, shown));
    }
    return value;
  }
  // Sizes: a whole number of at least 1.
  [[nodiscard]] std::optional<int64_t> size(const char* column) const {
    const std::optional<double> value = number(column);
    constexpr double kMost = 1e15;
    if (value && !(*value >= 1 && *value <= kMost && *value == std::floor(*value))) {
      throw InputError(where_, fmt::format("column '{}': expected a whole number of at least 1, "
                                           "found '{}'",
                                           column, text(column)));
    }
    return value ? std::optional(static_cast<int64_t>(*value)) : std::nullopt;
  }

 private:
  const Record& record_;
  const std::unordered_map<std::string, size_t>& columns_;
  std::string where_;
};

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

std::string scope(const Row& row, const PublishedRun& run) {
  if (row.text("dtype") != "bf16") {
    return row.text("dtype").empty() ? "its dtype is not printed" : row.text("dtype");
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

PublishedRun read_run(const Row& row, int64_t line) {
  PublishedRun run;
  run.row = line;
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
  run.out_of_scope = scope(row, run);
  const auto checkpointing = checkpointing_of(row.text("act_ckpt"));
  run.checkpointing = checkpointing.value_or(Checkpointing::kNone);
  bool complete = checkpointing.has_value() && run.tokens_per_s_gpu > 0;
  const std::pair<const char*, int64_t*> sizes[] = {
      {"n_layers", &run.shape.layers}, {"hidden", &run.shape.hidden},
      {"ffn", &run.shape.ffn},         {"heads", &run.shape.heads},
      {"vocab", &run.shape.vocab},     {"seq_len", &run.seq},
      {"microbatch", &run.microbatch}, {"gpus", &run.gpus}};
  for (const auto& [column, value] : sizes) {
    *value = row.size(column).value_or(0);
    complete = complete && *value > 0;
  }
  run.shape.kv_heads = row.size("kv_heads").value_or(run.shape.heads);
  run.accumulate = row.size("grad_accum").value_or(1);
  if (!complete || run.shape.hidden % run.shape.heads != 0) {
    run.out_of_scope = run.out_of_scope.empty() ? "sizes are missing" : run.out_of_scope;
    return run;
  }
  complete_shape(run.shape, run.seq, row.size("params"));
  return run;
}

}  // namespace

std::vector<PublishedRun> parse_published_runs(std::string_view text, const std::string& source) {
  Csv csv(text, source);
  Record record;
  int64_t line = 0;
  if (!csv.next(record, line)) {
    throw InputError(source, "the file is empty");
  }
  std::unordered_map<std::string, size_t> columns;
  for (size_t i = 0; i < record.size(); ++i) {
    columns.emplace(record[i], i);
  }
  for (const char* column : kColumns) {
    if (!columns.contains(column)) {
      throw InputError(
          source, fmt::format("no column '{}'; expected {}", column, fmt::join(kColumns, ", ")));
    }
  }
  const size_t width = record.size();
  std::vector<PublishedRun> runs;
  while (csv.next(record, line)) {
    if (record.size() == 1 && record[0].empty()) {
      continue;  // a blank line
    }
    const std::string where = fmt::format("{}:{}", source, line);
    if (record.size() != width) {
      throw InputError(where,
                       fmt::format("{} fields, but the header has {}", record.size(), width));
    }
    runs.push_back(read_run({record, columns, where}, line));
  }
  return runs;
}

std::vector<PublishedRun> load_published_runs(const std::filesystem::path& path) {
  return parse_published_runs(plan::read_text_file(path), path.string());
}

}  // namespace shardlens::sim
