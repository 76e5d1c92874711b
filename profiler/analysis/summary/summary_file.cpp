#include "profiler/analysis/summary/summary_file.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "profiler/analysis/summary/summary_fields.h"
#include "profiler/analysis/summary/summary_reader.h"
#include "profiler/analysis/summary/summary_writer.h"
#include "profiler/trace/bytes/byte_source.h"
#include "profiler/trace/bytes/compression.h"

namespace shardlens::analysis {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kVersionKey = "shardlens_summary";  // the first of the file
constexpr size_t kMostBytes = size_t{32} << 20;           // inflated
constexpr size_t kMostLevels = 16;

// Refuses nested values before the reader, which is recursive, runs out of stack.
class Depth final : public nlohmann::json_sax<ordered_json> {
 public:
  [[nodiscard]] size_t failed_at() const { return failed_at_; }

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(int64_t /*value*/) override { return true; }
  bool number_unsigned(uint64_t /*value*/) override { return true; }
  bool number_float(double /*value*/, const std::string& /*text*/) override { return true; }
  bool string(std::string& /*value*/) override { return true; }
  bool binary(nlohmann::json::binary_t& /*value*/) override { return false; }
  bool start_object(size_t /*size*/) override { return ++level_ <= kMostLevels; }
  bool key(std::string& /*value*/) override { return true; }
  bool end_object() override { return level_-- > 0; }
  bool start_array(size_t /*size*/) override { return ++level_ <= kMostLevels; }
  bool end_array() override { return level_-- > 0; }
  bool parse_error(size_t position,
                   const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    failed_at_ = position;
    return false;
  }

 private:
  size_t level_ = 0, failed_at_ = 0;
};

// The version that the first bytes state: a map, the first key, a number below 128.
//
// Errors  InputError if they state none, or one that this program cannot read.
void require_version(const std::string& bytes, const std::string& where) {
  const std::string key(kVersionKey);
  const size_t at = 2 + key.size();  // of the number
  if (bytes.size() <= at || (static_cast<uint8_t>(bytes[0]) & 0xf0U) != 0x80 ||
      static_cast<uint8_t>(bytes[1]) != (0xa0U | key.size()) ||
      bytes.compare(2, key.size(), key) != 0) {
    throw InputError(where,
                     "not a summary of a rank, which `shardlens analyze --summarize` writes");
  }
  if (const auto version = static_cast<uint8_t>(bytes[at]); version != kSummaryVersion) {
    throw InputError(where,
                     fmt::format("a summary of version {}, but this program reads version {}: "
                                 "summarize the trace again with this program",
                                 version, kSummaryVersion));
  }
}

std::string read_bytes(const fs::path& path) {
  constexpr size_t kChunk = size_t{256} << 10;
  const auto source = trace::open_source(path);
  std::string bytes;
  bool known = false;  // that it is a summary of this version
  for (size_t got = 1; got != 0;) {
    const size_t size = bytes.size();
    bytes.resize(size + kChunk);
    got = source->read(bytes.data() + size, kChunk);
    bytes.resize(size + got);
    if (!known && (got == 0 || bytes.size() >= 64)) {
      require_version(bytes, path.string());
      known = true;
    }
    if (bytes.size() > kMostBytes) {
      throw InputError(path.string(), fmt::format("more than {} MiB when inflated: no summary is",
                                                  kMostBytes >> 20));
    }
  }
  return bytes;
}

ordered_json parse(const std::string& bytes, const std::string& where) {
  Depth depth;
  if (!ordered_json::sax_parse(bytes, &depth, ordered_json::input_format_t::msgpack)) {
    throw InputError(where, fmt::format("the summary is damaged at byte {} of {} (inflated)",
                                        depth.failed_at(), bytes.size()));
  }
  return ordered_json::from_msgpack(bytes);
}

// What the analysis takes for granted.
//
// Errors  InputError if an index is out of its range, or rows are not in their order.
void require_consistent(const RankSummary& s, const SummaryLimits& limits) {
  const auto require = [&](bool good, std::string_view what) {
    if (!good) {
      limits.fail(fmt::format("the summary is damaged: {}", what));
    }
  };
  require(s.rank.value_or(0) >= 0, "a negative rank");
  Nanoseconds before = s.collectives.rows.empty() ? 0 : s.collectives.rows.front().when.start;
  for (const RankCollective& c : s.collectives.rows) {
    require(c.when.start >= before && c.when.end >= c.when.start, "collectives out of order");
    require(c.unit == kNoUnit || c.unit < s.collectives.units.size(), "a unit without a name");
    require(c.group < s.collectives.groups.size(), "a collective without its group");
    require(c.name < s.collectives.names.size(), "a collective without a name");
    before = c.when.start;
  }
  const std::vector<UnitFigures>& units = s.analysis.units;
  uint32_t last = 0;
  for (const UnitExposure& e : s.exposures) {
    require(e.exposure.collective >= last && e.exposure.collective < s.collectives.rows.size(),
            "exposed collectives out of order");
    require(e.unit < units.size() && units[e.unit].parts[static_cast<size_t>(e.part)] &&
                (e.other == trace::kNoIndex || e.other < units[e.unit].others.size()),
            "exposed time of an unknown unit");
    last = e.exposure.collective;
  }
  for (const Interval& i : s.analysis.window) {
    require(i.end >= i.start, "a window that ends before it starts");
  }
  for (const GroupFigures& group : s.analysis.groups) {
    require(group.under.size() == s.analysis.groups.size(), "groups that do not fit together");
  }
}

}  // namespace

std::string summary_name(const RankSummary& summary) {
  if (summary.rank) {
    return fmt::format("rank{}{}", *summary.rank, kSummaryEnding);
  }
  return fs::path(summary.source).filename().string() + std::string(kSummaryEnding);
}

std::string to_summary_bytes(RankSummary summary) {
  SummaryLimits limits;
  limits.where = summary.source;
  limits.base = !summary.analysis.window.empty()    ? summary.analysis.window.front().start
                : !summary.collectives.rows.empty() ? summary.collectives.rows.front().when.start
                                                    : 0;
  if (limits.base > SummaryLimits::kLatest || limits.base < -SummaryLimits::kLatest) {
    limits.fail("times that no run has cannot be summarized");
  }
  ordered_json out, body;
  SummaryWriter archive(body, limits);
  describe(archive, summary);
  out[kVersionKey] = kSummaryVersion;
  out["base_ns"] = limits.base;
  out["summary"] = std::move(body);
  std::string bytes;
  ordered_json::to_msgpack(out, bytes);
  if (bytes.size() > kMostBytes) {
    limits.fail(fmt::format("the summary has more than {} MiB: choose steps with --steps",
                            kMostBytes >> 20));
  }
  return trace::gzip(bytes);
}

RankSummary parse_summary(const std::string& bytes, const std::string& where) {
  require_version(bytes, where);
  const ordered_json json = parse(bytes, where);
  SummaryLimits limits;
  limits.where = where;
  const auto base = json.find("base_ns"), body = json.find("summary");
  if (base == json.end() || !base->is_number_integer() || body == json.end()) {
    limits.fail("the summary is damaged: 'base_ns' or 'summary' is missing");
  }
  limits.base = base->get<int64_t>();
  if (limits.base > SummaryLimits::kLatest || limits.base < -SummaryLimits::kLatest) {
    limits.fail("the summary is damaged: times that no run has");
  }
  RankSummary out;
  SummaryReader archive(*body, limits);
  describe(archive, out);
  require_consistent(out, limits);
  out.analysis.rank = out.collectives.rank = out.rank.value_or(0);
  out.analysis.blocks = block_figures(out.analysis.units);
  return out;
}

RankSummary read_summary(const fs::path& path) {
  return parse_summary(read_bytes(path), path.string());
}

std::vector<fs::path> summary_paths(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    return {path};
  }
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.is_regular_file() && entry.path().filename().string().ends_with(kSummaryEnding)) {
      out.push_back(entry.path());
    }
  }
  std::sort(out.begin(), out.end());
  if (out.empty()) {
    throw InputError(path.string(),
                     fmt::format("the directory contains no summary: expected *{}, which "
                                 "`shardlens analyze --summarize` writes",
                                 kSummaryEnding));
  }
  return out;
}

}  // namespace shardlens::analysis
