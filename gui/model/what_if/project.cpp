#include "gui/model/what_if/project.h"

#include <algorithm>
#include <array>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/files/atomic_file.h"
#include "core/json/json_dump.h"
#include "core/json/json_reader.h"
#include "sim/cost/transport.h"

namespace shardlens::gui {
namespace {

namespace fs = std::filesystem;
using plan::JsonNode;
using Json = nlohmann::ordered_json;

constexpr int64_t kVersion = 1;

// The path as stored in the file: relative if it is below `directory`, so that both can be moved
// together.
std::string written(const fs::path& path, const fs::path& directory) {
  const fs::path relative = path.lexically_relative(directory);
  const bool below = !relative.empty() && *relative.begin() != "..";
  return (below ? relative : path).generic_string();
}

Json written(const std::vector<fs::path>& paths, const fs::path& directory) {
  Json out = Json::array();
  for (const fs::path& path : paths) {
    out.push_back(written(path, directory));
  }
  return out;
}

fs::path read_path(const JsonNode& node, const fs::path& directory) {
  const fs::path path = node.string();
  if (path.empty()) {
    node.fail("expected a path, found ''");
  }
  return (directory / path).lexically_normal();
}

std::vector<fs::path> read_paths(const JsonNode& root, const char* key, const fs::path& directory) {
  std::vector<fs::path> out;
  if (const auto list = root.find(key)) {
    for (const JsonNode& item : list->items("paths")) {
      out.push_back(read_path(item, directory));
    }
  }
  return out;
}

PlanState read_plan(const JsonNode& node, QString& title) {
  const std::array<std::string, 16> keys{"title",       "machine",
                                         "hardware",    "world_size",
                                         "batch",       "seq",
                                         "accumulate",  "sync_every_microbatch",
                                         "optimizer",   "optimizer_impl",
                                         "momentum",    "software",
                                         "transport",   "stack",
                                         "power_watts", "plan"};
  node.expect_object("a plan that was tried");
  node.allow_only(keys);
  PlanState out;
  title = QString::fromStdString(node.require("title").string());
  // Files written by version 0.1 have "hardware", which is always a spec, instead of "machine".
  const auto spec = node.find("hardware");
  out.machine = QString::fromStdString(spec ? spec->string() : node.require("machine").string());
  out.world_size = node.require("world_size").integer(1, 1 << 20);
  out.step.batch = node.require("batch").integer(1, 1 << 20);
  if (const auto seq = node.find("seq")) {
    out.step.seq = seq->integer(1, 1 << 24);
  }
  if (const auto accumulate = node.find("accumulate")) {
    out.step.accumulate = accumulate->integer(1, 1 << 20);
  }
  if (const auto sync = node.find("sync_every_microbatch")) {
    out.step.sync_every_microbatch = sync->boolean();
  }
  if (const auto optimizer = node.find("optimizer")) {
    if (optimizer->string() == plan::name_of(plan::Optimizer::kSgd)) {
      out.step.optimizer = plan::Optimizer::kSgd;
    } else if (optimizer->string() != plan::name_of(plan::Optimizer::kAdamW)) {
      optimizer->fail("expected adamw or sgd, found '" + optimizer->string() + "'");
    }
  }
  if (const auto impl = node.find("optimizer_impl")) {
    if (impl->string() == plan::name_of(plan::OptimizerImpl::kForeach)) {
      out.step.optimizer_impl = plan::OptimizerImpl::kForeach;
    } else if (impl->string() != plan::name_of(plan::OptimizerImpl::kFused)) {
      impl->fail("expected fused or foreach, found '" + impl->string() + "'");
    }
  }
  if (const auto transport = node.find("transport")) {
    const auto named = sim::transport_named(transport->string());
    if (!named) {
      transport->fail("expected ring, symmetric or copy_engine, found '" + transport->string() +
                      "'");
    }
    out.transport = *named;
  }
  if (const auto stack = node.find("stack")) {
    out.stack = QString::fromStdString(stack->string());
  }
  if (const auto watts = node.find("power_watts")) {
    out.power_watts = watts->number();
  }
  if (const auto momentum = node.find("momentum")) {
    out.step.momentum = momentum->number();
  }
  if (const auto software = node.find("software")) {
    out.step.software = plan::software_of(*software);
  }
  const JsonNode plan = node.require("plan");
  out.plan = plan::parse_plan(plan.json().dump(), plan.where());
  return out;
}

Json plan_json(const PlanState& state, const QString& title) {
  Json out{{"title", title.toStdString()},
           {"machine", state.machine.toStdString()},
           {"world_size", state.world_size},
           {"batch", state.step.batch}};
  if (state.step.seq) {
    out["seq"] = *state.step.seq;
  }
  out["accumulate"] = state.step.accumulate;
  out["sync_every_microbatch"] = state.step.sync_every_microbatch;
  out["optimizer"] = plan::name_of(state.step.optimizer);
  if (state.step.optimizer == plan::Optimizer::kSgd) {
    out["momentum"] = state.step.momentum;
  }
  if (state.step.optimizer_impl != plan::OptimizerImpl::kFused) {
    out["optimizer_impl"] = plan::name_of(state.step.optimizer_impl);
  }
  if (state.transport != sim::Transport::kRing) {
    out["transport"] = sim::name_of(state.transport);
  }
  if (!state.stack.isEmpty()) {
    out["stack"] = state.stack.toStdString();
  }
  if (state.power_watts) {
    out["power_watts"] = *state.power_watts;
  }
  if (state.step.software != plan::Software{}) {
    out["software"] = plan::software_json(state.step.software);
  }
  out["plan"] = Json::parse(plan::to_json(state.plan));
  return out;
}

Json lanes_json(const LaneArrangement& lanes) {
  const auto list = [](const QStringList& names) {
    Json out = Json::array();
    for (const QString& name : names) {
      out.push_back(name.toStdString());
    }
    return out;
  };
  Json pinned = Json::array();
  for (const LaneArrangement::Pin& pin : lanes.pinned) {
    pinned.push_back({{"rank", pin.rank}, {"lane", pin.lane.toStdString()}});
  }
  return {{"order", list(lanes.order)},
          {"hidden", list(lanes.hidden)},
          {"pinned", std::move(pinned)},
          {"nested", lanes.nested}};
}

LaneArrangement read_lanes(const JsonNode& node) {
  const std::array<std::string, 4> keys{"order", "hidden", "pinned", "nested"};
  node.expect_object("lanes of the timeline");
  node.allow_only(keys);
  LaneArrangement out;
  const auto list = [&node](const char* key) {
    QStringList names;
    if (const auto found = node.find(key)) {
      for (const JsonNode& name : found->items("names of lanes")) {
        names.append(QString::fromStdString(name.string()));
      }
    }
    return names;
  };
  out.order = list("order");
  out.hidden = list("hidden");
  if (const auto pinned = node.find("pinned")) {
    for (const JsonNode& item : pinned->items("pinned lanes")) {
      const std::array<std::string, 2> pin_keys{"rank", "lane"};
      item.expect_object("a pinned lane");
      item.allow_only(pin_keys);
      out.pinned.push_back({item.require("rank").integer(0, 1 << 20),
                            QString::fromStdString(item.require("lane").string())});
    }
  }
  if (const auto nested = node.find("nested")) {
    out.nested = nested->boolean();
  }
  return out;
}

fs::path directory_of(const fs::path& file) {
  return fs::absolute(file).lexically_normal().parent_path();
}

}  // namespace

std::string to_json(const Project& project, const fs::path& file) {
  const fs::path directory = directory_of(file);
  Json out;
  out["shardlens_project"] = kVersion;
  if (!project.traces.empty()) {
    out["traces"] = written(project.traces, directory);
  }
  if (!project.compared.empty()) {
    out["compared"] = written(project.compared, directory);
  }
  if (!project.model.empty()) {
    out["model"] = written(project.model, directory);
  }
  Json& plans = out["plans"] = Json::array();
  for (size_t i = 0; i < project.plans.size(); ++i) {
    plans.push_back(plan_json(project.plans[i], project.titles[i]));
  }
  out["current"] = project.current;
  Json& marks = out["bookmarks"] = Json::array();
  for (const Bookmark& mark : project.bookmarks) {
    marks.push_back({{"time_ns", mark.time}, {"note", mark.note.toStdString()}});
  }
  out["notes"] = project.notes.toStdString();
  if (project.lanes) {
    out["lanes"] = lanes_json(*project.lanes);
  }
  return plan::json_text(out, 2) + "\n";
}

Project parse_project(std::string_view json, const fs::path& file) {
  const std::string source = file.string();
  const nlohmann::json document = plan::parse_json(json, source);
  const JsonNode root(document, source);
  root.expect_object("a Shardlens project");
  const JsonNode version = root.require("shardlens_project");
  if (const int64_t found = version.integer(); found != kVersion) {
    version.fail(fmt::format("found version {}, this program reads version {}", found, kVersion));
  }
  const std::array<std::string, 9> keys{
      "shardlens_project", "traces",    "compared", "model", "plans",
      "current",           "bookmarks", "notes",    "lanes"};
  root.allow_only(keys);
  const fs::path directory = directory_of(file);
  Project out;
  out.traces = read_paths(root, "traces", directory);
  out.compared = read_paths(root, "compared", directory);
  if (const auto model = root.find("model")) {
    out.model = read_path(*model, directory);
  }
  if (out.traces.empty() == out.model.empty()) {
    root.fail("expected either 'traces' or 'model'");
  }
  if (const auto plans = root.find("plans")) {
    for (const JsonNode& item : plans->items("plans")) {
      out.plans.push_back(read_plan(item, out.titles.emplace_back()));
    }
  }
  if (const auto current = root.find("current")) {
    const auto last = std::max<int64_t>(0, static_cast<int64_t>(out.plans.size()) - 1);
    out.current = static_cast<size_t>(current->integer(0, last));
  }
  if (const auto marks = root.find("bookmarks")) {
    for (const JsonNode& item : marks->items("bookmarks")) {
      const std::array<std::string, 2> mark_keys{"time_ns", "note"};
      item.expect_object("a bookmark");
      item.allow_only(mark_keys);
      out.bookmarks.push_back({item.require("time_ns").integer(),
                               QString::fromStdString(item.require("note").string())});
    }
  }
  if (const auto notes = root.find("notes")) {
    out.notes = QString::fromStdString(notes->string());
  }
  if (const auto lanes = root.find("lanes")) {
    out.lanes = read_lanes(*lanes);
  }
  return out;
}

Project load_project(const fs::path& file) {
  return parse_project(plan::read_text_file(file), file);
}

void save_project(const Project& project, const fs::path& file) {
  write_file_atomically(file, to_json(project, file));
}

bool is_project_file(const QString& path) {
  return path.endsWith(QStringLiteral(".shardlens"), Qt::CaseInsensitive);
}

}  // namespace shardlens::gui
