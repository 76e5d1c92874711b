#include "profiler/check/baseline_file.h"

#include <algorithm>
#include <fstream>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/plan/json_fault.h"
#include "core/plan/json_reader.h"
#include "profiler/analysis/recover/recorded_program.h"

namespace shardlens::check {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr std::string_view kMark = "{\"shardlens_baseline\"";

Json parts_json(const std::vector<Part>& parts) {
  Json out = Json::array();
  for (const Part& part : parts) {
    out.push_back({part.unit, part.part, part.ns});
  }
  return out;
}

std::vector<Part> parts_of(const Json& json) {
  std::vector<Part> out;
  for (const Json& part : json) {
    out.push_back({part.at(0), part.at(1), part.at(2)});
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

StepStructure structure_from(const Json& json) {
  StepStructure step;
  for (const Json& stream : json.at("streams")) {
    auto& items = step.streams.emplace_back();
    for (const Json& item : stream) {
      items.push_back({item.at(0), item.at(1), item.at(2)});
    }
  }
  for (const Json& item : json.at("order")) {
    step.order.push_back({item.at(0), item.at(1), item.at(2), item.at(3), item.at(4)});
  }
  step.unsharded_peak = json.at("unsharded_peak_bytes");
  return step;
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
          {"late_reductions", run.late_reductions},
          {"doubts", run.doubts},
          {"notes", run.notes}};
}

RunSummary run_from(const Json& json, const std::string& source) {
  RunSummary run;
  run.source = json.at("source");
  run.session = json.value("session", int64_t{1});  // earlier versions saved one session
  const Json& fingerprint = json.at("fingerprint");
  run.fingerprint.machine = fingerprint.at("machine").get<std::map<std::string, std::string>>();
  run.fingerprint.versions = fingerprint.at("versions").get<std::map<std::string, std::string>>();
  run.fingerprint.plan = fingerprint.at("plan");
  run.ranks = json.at("ranks").get<std::vector<int64_t>>();
  run.steps = json.at("steps");
  run.warmup = json.at("warmup");
  run.used = json.at("used");
  run.exact = json.at("exact");
  for (const auto& [name, value] : json.at("metrics_ns").items()) {
    if (const auto metric = parse_metric(name)) {
      run.metrics[*metric] = value.get<double>();
    }
  }
  for (const Metric metric : {Metric::kStepTime, Metric::kExposedComm}) {  // every run has them
    if (!run.metrics[metric]) {
      throw InputError(source, fmt::format("the run {} has no '{}' in 'metrics_ns', so nothing "
                                           "can be compared with it; save the baseline again",
                                           run.source, name_of(metric)));
    }
  }
  run.step_parts = parts_of(json.at("step_parts_ns"));
  run.exposed_parts = parts_of(json.at("exposed_parts_ns"));
  for (const Json& rank : json.at("structure")) {
    RankStructure& structure = run.structure.emplace_back();
    structure.rank = rank.at("rank");
    for (const Json& variant : rank.at("variants")) {
      structure.variants.push_back({structure_from(variant), variant.at("steps")});
    }
    // Files of earlier versions have none.
    for (const Json& key : rank.value("varying_bytes", Json::array())) {
      structure.varying[{key.at(0), key.at(1)}] = key.at(2).get<std::vector<double>>();
    }
  }
  run.late_reductions = json.at("late_reductions").get<std::vector<std::string>>();
  run.doubts = json.at("doubts").get<std::vector<std::string>>();
  run.notes = json.at("notes").get<std::vector<std::string>>();
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
  return Json{{"shardlens_baseline", kVersion}, {"runs", list}}.dump() + "\n";
}

std::vector<RunSummary> parse_baseline(std::string_view json, const std::string& source) {
  try {
    const Json file = Json::parse(json);
    const int version = file.at("shardlens_baseline");
    if (version != kVersion) {
      throw InputError(source,
                       fmt::format("a baseline of version {}, but this shardlens reads version "
                                   "{}; save it again",
                                   version, kVersion));
    }
    std::vector<RunSummary> runs;
    for (const Json& run : file.at("runs")) {
      runs.push_back(run_from(run, source));
    }
    if (runs.empty()) {
      throw InputError(source, "the baseline contains no run");
    }
    return runs;
  } catch (const nlohmann::json::exception& error) {
    throw InputError(source,
                     fmt::format("not a baseline saved by shardlens: {}", plan::fault_of(error)));
  }
}

bool is_baseline_file(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    return false;
  }
  std::ifstream in(path, std::ios::binary);
  std::string begin(kMark.size(), '\0');
  in.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return in && begin == kMark;
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
    runs.push_back(summarize(analysis::open_run(std::span(&run, 1)), options));
  }
  return runs;
}

}  // namespace shardlens::check
