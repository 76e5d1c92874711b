#include "profiler/check/baseline_file.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/files/input_file.h"
#include "core/json/json_dump.h"
#include "core/json/json_reader.h"
#include "profiler/analysis/recover/recorded_program.h"
#include "profiler/trace/model/latest_time.h"

namespace shardlens::check {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using plan::JsonNode;

constexpr int kVersion = 1;
constexpr int64_t kMostOf = INT32_MAX;  // steps, ranks and sessions
constexpr std::string_view kMark = "{\"shardlens_baseline\"";

Json parts_json(const std::vector<Part>& parts) {
  Json out = Json::array();
  for (const Part& part : parts) {
    out.push_back({part.unit, part.part, part.ns});
  }
  return out;
}

Json structure_json(const StepStructure& step) {
  Json streams = Json::array(), order = Json::array();
  for (const auto& stream : step.streams) {
    Json& items = streams.emplace_back(Json::array());
    for (const StreamItem& item : stream) {
      items.push_back({item.unit, item.part, item.bytes});
    }
  }
  for (const HostItem& item : step.order) {
    order.push_back({item.what, item.unit, item.backward, item.hook_unit, item.by});
  }
  return {{"streams", streams}, {"order", order}, {"unsharded_peak_bytes", step.unsharded_peak}};
}

Json run_json(const RunSummary& run) {
  Json metrics = Json::object(), ranks = Json::array();
  for (size_t i = 0; i < metric_table().size(); ++i) {
    if (const auto& value = run.metrics[static_cast<Metric>(i)]) {
      metrics[std::string(metric_table()[i].name)] = *value;
    }
  }
  for (const RankStructure& rank : run.structure) {
    Json variants = Json::array();
    for (const RankStructure::Variant& variant : rank.variants) {
      Json json = structure_json(variant.structure);
      json["steps"] = variant.steps;
      variants.push_back(std::move(json));
    }
    Json varying = Json::array();
    for (const auto& [key, bytes] : rank.varying) {
      varying.push_back({key.first, key.second, bytes});
    }
    ranks.push_back({{"rank", rank.rank}, {"variants", variants}, {"varying_bytes", varying}});
  }
  Json memory = Json::array();
  for (const MemoryPeak& peak : run.memory) {
    memory.push_back(
        {peak.rank, peak.device, peak.kept ? Json(*peak.kept) : Json(nullptr), peak.peak});
  }
  return {{"source", run.source},
          {"session", run.session},
          {"fingerprint",
           {{"machine", run.fingerprint.machine},
            {"versions", run.fingerprint.versions},
            {"plan", run.fingerprint.plan}}},
          {"ranks", run.ranks},
          {"steps", run.steps},
          {"warmup", run.warmup},
          {"used", run.used},
          {"exact", run.exact},
          {"metrics_ns", metrics},
          {"step_parts_ns", parts_json(run.step_parts)},
          {"exposed_parts_ns", parts_json(run.exposed_parts)},
          {"structure", ranks},
          {"memory_bytes", memory},
          {"late_reductions", run.late_reductions},
          {"doubts", run.doubts},
          {"notes", run.notes}};
}

// Elements of a list that has so many of them.
std::vector<JsonNode> elements(const JsonNode& node, size_t count) {
  std::vector<JsonNode> out = node.items(fmt::format("a list of {} elements", count));
  if (out.size() != count) {
    node.fail(fmt::format("expected {} elements, found {}", count, out.size()));
  }
  return out;
}

// Times in nanoseconds, and sizes in bytes: so small that sums of them fit.
double quantity(const JsonNode& node) {
  const double value = node.number();
  if (std::abs(value) > static_cast<double>(trace::kLatestTime)) {
    node.fail(
        fmt::format("expected a number up to {}, found {}", trace::kLatestTime, node.shown()));
  }
  return value;
}

int64_t count_of(const JsonNode& node) {
  return node.integer(0, kMostOf);
}

Bytes bytes_of(const JsonNode& node) {
  return node.integer(kVaries, trace::kLatestTime);
}

std::map<std::string, std::string> texts_of(const JsonNode& node) {
  node.expect_object("an object of strings");
  std::map<std::string, std::string> out;
  for (const std::string& key : node.keys()) {
    out.emplace(key, node.require(key).string());
  }
  return out;
}

std::vector<Part> parts_of(const JsonNode& node) {
  std::vector<Part> out;
  for (const JsonNode& each : node.items("a list of parts")) {
    const std::vector<JsonNode> part = elements(each, 3);
    out.push_back({part[0].string(), part[1].string(), quantity(part[2])});
  }
  return out;
}

StepStructure structure_from(const JsonNode& node) {
  StepStructure step;
  for (const JsonNode& stream : node.require("streams").items("a list of streams")) {
    auto& items = step.streams.emplace_back();
    for (const JsonNode& each : stream.items("a list of collectives")) {
      const std::vector<JsonNode> item = elements(each, 3);
      items.push_back({item[0].string(), item[1].string(), bytes_of(item[2])});
    }
  }
  for (const JsonNode& each : node.require("order").items("a list of operations")) {
    const std::vector<JsonNode> item = elements(each, 5);
    step.order.push_back({item[0].string(), item[1].string(), item[2].boolean(), item[3].string(),
                          item[4].string()});
  }
  step.unsharded_peak = bytes_of(node.require("unsharded_peak_bytes"));
  return step;
}

RankStructure rank_from(const JsonNode& node) {
  RankStructure rank;
  rank.rank = count_of(node.require("rank"));
  for (const JsonNode& variant : node.require("variants").items("a list of variants")) {
    rank.variants.push_back({structure_from(variant), count_of(variant.require("steps"))});
  }
  if (const auto varying = node.find("varying_bytes")) {  // files of earlier versions have none
    for (const JsonNode& each : varying->items("a list of sizes that vary")) {
      const std::vector<JsonNode> key = elements(each, 3);
      auto& steps = rank.varying[{key[0].string(), key[1].string()}];
      for (const JsonNode& bytes : key[2].items("a list of bytes")) {
        steps.push_back(quantity(bytes));
      }
    }
  }
  return rank;
}

MetricValues metrics_of(const JsonNode& node, const std::string& run) {
  node.expect_object("an object of metrics");
  MetricValues out;
  for (const std::string& name : node.keys()) {
    if (const auto metric = parse_metric(name)) {
      out[*metric] = quantity(node.require(name));
    }
  }
  for (const Metric metric : {Metric::kStepTime, Metric::kExposedComm}) {  // every run has them
    if (!out[metric]) {
      node.fail(fmt::format(
          "the run {} has no '{}', so nothing can be compared with it; save the baseline again",
          run, name_of(metric)));
    }
  }
  return out;
}

// Rank, device, bytes kept (or null), peak.
MemoryPeak peak_from(const JsonNode& node) {
  const std::vector<JsonNode> peak = elements(node, 4);
  const auto bytes = [](const JsonNode& of) { return of.integer(0, trace::kLatestTime); };
  return {count_of(peak[0]), peak[1].string(),
          peak[2].is_null() ? std::nullopt : std::optional<Bytes>(bytes(peak[2])), bytes(peak[3])};
}

RunSummary run_from(const JsonNode& node) {
  node.expect_object("a run");
  RunSummary run;
  run.source = node.require("source").string();
  const auto session = node.find("session");  // earlier versions saved one session
  run.session = session ? count_of(*session) : 1;
  const JsonNode fingerprint = node.require("fingerprint");
  run.fingerprint.machine = texts_of(fingerprint.require("machine"));
  run.fingerprint.versions = texts_of(fingerprint.require("versions"));
  run.fingerprint.plan = fingerprint.require("plan").string();
  for (const JsonNode& rank : node.require("ranks").items("a list of ranks")) {
    run.ranks.push_back(count_of(rank));
  }
  run.steps = count_of(node.require("steps"));
  run.warmup = count_of(node.require("warmup"));
  run.used = count_of(node.require("used"));
  run.exact = node.require("exact").boolean();
  run.metrics = metrics_of(node.require("metrics_ns"), run.source);
  run.step_parts = parts_of(node.require("step_parts_ns"));
  run.exposed_parts = parts_of(node.require("exposed_parts_ns"));
  for (const JsonNode& rank : node.require("structure").items("a list of ranks")) {
    run.structure.push_back(rank_from(rank));
  }
  if (const auto memory = node.find("memory_bytes")) {  // files of earlier versions have none
    for (const JsonNode& peak : memory->items("a list of peaks of memory")) {
      run.memory.push_back(peak_from(peak));
    }
  }
  run.late_reductions = node.require("late_reductions").strings("a list of strings");
  run.doubts = node.require("doubts").strings("a list of strings");
  run.notes = node.require("notes").strings("a list of strings");
  return run;
}

// Subdirectories that contain traces, sorted by name.
std::vector<fs::path> runs_below(const fs::path& directory) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (!entry.is_directory()) {
      continue;
    }
    try {
      if (!trace::trace_paths(entry.path()).empty()) {
        out.push_back(entry.path());
      }
    } catch (const InputError&) {
      // contains no traces: not a run
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

bool holds_traces(const fs::path& directory) {
  try {
    return !trace::trace_paths(directory).empty();
  } catch (const InputError&) {
    return false;
  }
}

}  // namespace

std::string to_json(const std::vector<RunSummary>& runs) {
  Json list = Json::array();
  for (const RunSummary& run : runs) {
    list.push_back(run_json(run));
  }
  return plan::json_text(Json{{"shardlens_baseline", kVersion}, {"runs", list}}) + "\n";
}

std::vector<RunSummary> parse_baseline(std::string_view json, const std::string& source) {
  const nlohmann::json document = plan::parse_json(json, source);
  const JsonNode file(document, source);
  file.expect_object("a baseline saved by shardlens");
  const int64_t version = file.require("shardlens_baseline").integer();
  if (version != kVersion) {
    throw InputError(source, fmt::format("a baseline of version {}, but this shardlens reads "
                                         "version {}; save it again",
                                         version, kVersion));
  }
  std::vector<RunSummary> runs;
  for (const JsonNode& run : file.require("runs").items("a list of runs")) {
    runs.push_back(run_from(run));
  }
  if (runs.empty()) {
    throw InputError(source, "the baseline contains no run");
  }
  return runs;
}

bool is_baseline_file(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    return false;
  }
  InputFile file(path, {.most_bytes = UINT64_MAX});  // of which only the beginning is read
  std::string begin(kMark.size(), '\0');
  begin.resize(file.read(begin.data(), begin.size()));
  return begin == kMark;
}

std::vector<fs::path> run_paths(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    throw InputError(path.string(), "no such file or directory");
  }
  if (!fs::is_directory(path, error) || holds_traces(path)) {
    return {path};
  }
  std::vector<fs::path> runs = runs_below(path);
  if (runs.empty()) {
    throw InputError(path.string(),
                     "contains neither traces nor directories with traces: expected a capture "
                     "directory, a directory of several, a trace or a saved baseline");
  }
  return runs;
}

void add_session(std::vector<RunSummary>& runs) {
  int64_t last = 0;
  for (const RunSummary& run : runs) {
    last = std::max(last, run.session);
  }
  for (RunSummary& run : runs) {
    run.session = run.session == 0 ? last + 1 : run.session;
  }
}

std::vector<RunSummary> read_runs(const fs::path& path, const SummaryOptions& options) {
  if (is_baseline_file(path)) {
    return parse_baseline(plan::read_text_file(path), path.string());
  }
  std::vector<RunSummary> runs;
  for (const fs::path& run : run_paths(path)) {
    runs.push_back(
        summarize(analysis::open_run(std::span(&run, 1), {.keep_flows = false}), options));
  }
  return runs;
}

}  // namespace shardlens::check
