#include <array>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/json/json_dump.h"
#include "core/json/json_reader.h"
#include "sim/calibrate/calibration.h"
#include "sim/calibrate/measured_points.h"
#include "sim/hardware/curve_json.h"

namespace shardlens::sim {
namespace {

using nlohmann::ordered_json;
using plan::JsonNode;
using Names = std::vector<std::string>;

constexpr double kMostOfNumber = 1e12;
const Names kKeys{"version",   "communication", "sources", "host",       "ranks",
                  "operators", "classes",       "actions", "hooks",      "copy",
                  "outside",   "slowdown",      "curves",  "peer_waits", "emulated",
                  "hidden",    "unknown",       "waking",  "blocking"};
const Names kHosts{"ahead", "compute"};
const Names kKinds{"gemm", "attention", "embedding", "norm", "elementwise", "loss", "optimizer"};

ordered_json optional_json(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

double amount(const JsonNode& node, double low = 0) {
  const double value = node.number();
  if (!(value >= low && value <= kMostOfNumber)) {
    node.fail(
        fmt::format("expected a number from {} to {}, found {}", low, kMostOfNumber, node.shown()));
  }
  return value;
}

double amount_of(const JsonNode& parent, std::string_view key, double low = 0) {
  return amount(parent.require(key), low);
}

std::optional<double> optional_of(const JsonNode& parent, std::string_view key, double low) {
  const JsonNode node = parent.require(key);
  return node.is_null() ? std::nullopt : std::optional(amount(node, low));
}

int64_t count_of(const JsonNode& parent, std::string_view key) {
  return parent.require(key).integer(0, plan::kMostOfOperator);
}

DType dtype_of(const JsonNode& parent) {
  const JsonNode node = parent.require("dtype");
  const auto dtype = parse_dtype(node.string());
  if (!dtype) {
    node.fail(fmt::format("expected a dtype like 'fp32' or 'bf16', found {}", node.shown()));
  }
  return *dtype;
}

// {"alloc": 1.5, …}: values of 0 are omitted.
template <size_t N, typename NameOf>
ordered_json named(const std::array<double, N>& values, NameOf name_of_index) {
  ordered_json out = ordered_json::object();
  for (size_t i = 0; i < N; ++i) {
    if (values[i] != 0) {
      out[std::string(name_of_index(i))] = values[i];
    }
  }
  return out;
}

template <size_t N, typename NameOf>
void read_named(const JsonNode& node, std::array<double, N>& values, NameOf name_of_index) {
  Names names;
  for (size_t i = 0; i < N; ++i) {
    names.emplace_back(name_of_index(i));
  }
  node.expect_object("microseconds by name");
  node.allow_only(names);
  for (size_t i = 0; i < N; ++i) {
    if (const auto found = node.find(names[i])) {
      values[i] = amount(*found);
    }
  }
}

std::string_view op_name(size_t index) {
  return schedule::name_of(static_cast<schedule::Op>(index));
}
std::string_view kind_name(size_t index) {
  return name_of(static_cast<CollectiveKind>(index));
}
std::string_view hook_name(size_t index) {
  return name_of(static_cast<Hook>(index));
}

ordered_json operator_json(const MeasuredOperator& each) {
  return {{"name", each.shape.name},
          {"kind", kKinds[static_cast<size_t>(each.kind)]},
          {"batch", each.shape.batch},
          {"m", each.shape.m},
          {"n", each.shape.n},
          {"k", each.shape.k},
          {"dtype", plan_name(each.shape.dtype)},
          {"read_bytes", each.shape.read},
          {"written_bytes", each.shape.written},
          {"flops", each.flops},
          {"us", each.us},
          {"issue_us", each.issue_us},
          {"samples", each.samples},
          {"spread", each.spread}};
}

MeasuredOperator read_operator(const JsonNode& node) {
  static const Names kOperatorKeys{
      "name",       "kind",          "batch", "m",  "n",        "k",       "dtype",
      "read_bytes", "written_bytes", "flops", "us", "issue_us", "samples", "spread"};
  node.expect_object("a measured operator");
  node.allow_only(kOperatorKeys);
  MeasuredOperator out;
  out.shape.name = node.require("name").string();
  out.kind = static_cast<plan::OperatorKind>(node.require("kind").one_of(kKinds));
  out.shape.batch = count_of(node, "batch");
  out.shape.m = count_of(node, "m");
  out.shape.n = count_of(node, "n");
  out.shape.k = count_of(node, "k");
  out.shape.dtype = dtype_of(node);
  out.shape.read = count_of(node, "read_bytes");
  out.shape.written = count_of(node, "written_bytes");
  out.flops = count_of(node, "flops");
  out.us = amount_of(node, "us");
  out.issue_us = amount_of(node, "issue_us");
  out.samples = count_of(node, "samples");
  out.spread = amount_of(node, "spread");
  return out;
}

ordered_json class_json(const KernelClass& each) {
  return {{"name", each.name},
          {"dtype", plan_name(each.dtype)},
          {"us", each.us},
          {"us_per_unit", each.us_per_unit},
          {"issue_us", each.issue_us},
          {"least_work", each.least_work},
          {"most_work", each.most_work},
          {"shapes", each.shapes},
          {"samples", each.samples},
          {"share", each.share},
          {"spread", each.spread},
          {"slowdown", optional_json(each.slowdown)},
          {"left_out_error", optional_json(each.left_out)}};
}

KernelClass read_class(const JsonNode& node) {
  static const Names kClassKeys{
      "name",   "dtype",   "us",    "us_per_unit", "issue_us", "least_work",    "most_work",
      "shapes", "samples", "share", "spread",      "slowdown", "left_out_error"};
  node.expect_object("a class of kernels");
  node.allow_only(kClassKeys);
  KernelClass out;
  out.name = node.require("name").string();
  out.dtype = dtype_of(node);
  out.us = amount_of(node, "us");
  out.us_per_unit = amount_of(node, "us_per_unit");
  out.issue_us = amount_of(node, "issue_us");
  if (node.find("most_work")) {  // files of earlier versions do not have it
    out.least_work = amount_of(node, "least_work");
    out.most_work = amount_of(node, "most_work", out.least_work);
  }
  out.shapes = count_of(node, "shapes");
  out.samples = count_of(node, "samples");
  out.share = amount_of(node, "share");
  out.spread = amount_of(node, "spread");
  out.slowdown = optional_of(node, "slowdown", 1);
  out.left_out = optional_of(node, "left_out_error", 0);
  return out;
}

// Files of earlier versions have microseconds per megabyte.
CopyTimes read_copy_times(const JsonNode& node) {
  constexpr Bytes kMegabyte = 1'000'000;
  CopyTimes out;
  if (!node.json().is_array()) {
    const double us = amount(node);
    return us > 0 ? CopyTimes{{{kMegabyte, us}}} : out;
  }
  out.points =
      read_points<CopyTimes::Point>(node, [](const JsonNode& time) { return amount(time); });
  return out;
}

void read_copies(const JsonNode& node, Calibration& out) {
  Names names;
  for (size_t op = 0; op < out.copies_of.size(); ++op) {
    names.emplace_back(op_name(op));
  }
  node.expect_object("copies by action");
  node.allow_only(names);
  for (size_t op = 0; op < out.copies_of.size(); ++op) {
    if (const auto found = node.find(names[op])) {
      out.copies_of[op] = read_copy_times(*found);
    }
  }
}

ordered_json curve_json(const CollectiveCurve& curve) {
  ordered_json points = ordered_json::array();
  for (const CollectiveCurve::Point& point : curve.points) {
    points.push_back({point.bytes, point.us});
  }
  return {{"kind", name_of(curve.kind)}, {"ranks", curve.ranks}, {"points", std::move(points)}};
}

// Files of earlier versions have neighbouring sizes too, so they are merged here as well.
CollectiveCurve read_measured_curve(const JsonNode& node) {
  static const Names kCurveKeys{"kind", "ranks", "points"};
  node.expect_object("a measured curve");
  node.allow_only(kCurveKeys);
  CollectiveCurve curve =
      read_curve(node, 1 << 20, [](const JsonNode& time) { return amount(time); });
  if (curve.points.empty()) {
    node.require("points").fail("expected at least one point");
  }
  std::vector<LinePoint> points;
  for (const CollectiveCurve::Point& each : curve.points) {
    points.push_back({static_cast<double>(each.bytes), each.us});
  }
  return measured_curve(curve.kind, curve.ranks, points);
}

template <typename T, typename Convert>
ordered_json list(const std::vector<T>& items, Convert convert) {
  ordered_json out = ordered_json::array();
  for (const T& item : items) {
    out.push_back(convert(item));
  }
  return out;
}

}  // namespace

std::string to_json(const Calibration& c) {
  ordered_json out{{"version", 1}, {"sources", c.sources}};
  out["host"] = kHosts[static_cast<size_t>(c.host)];
  out["ranks"] = c.ranks;
  out["classes"] = list(c.classes, class_json);
  out["operators"] = list(c.operators, operator_json);
  out["actions"] = named(c.action_us, op_name);
  out["hooks"] = named(c.hook_us, hook_name);
  for (size_t kind = 0; kind < c.communication.size(); ++kind) {
    if (const auto& measured = c.communication[kind]) {
      out["communication"][std::string(name_of(static_cast<CollectiveKind>(kind)))] = {
          {"us", measured->us}, {"before_wait_us", measured->before_wait_us}};
    }
  }
  out["copy"] = {{"us_per_mb", c.copy_us_per_mb}, {"by_action", ordered_json::object()}};
  for (size_t op = 0; op < c.copies_of.size(); ++op) {
    for (const CopyTimes::Point& each : c.copies_of[op].points) {
      out["copy"]["by_action"][std::string(op_name(op))].push_back({each.bytes, each.us});
    }
  }
  out["outside"] = {{"us", c.outside_us},
                    {"norm_communication_us", c.norm_communication_us},
                    {"communication_us", c.outside_communication_us}};
  out["slowdown"] = {{"compute", optional_json(c.compute_slowdown)},
                     {"collectives", optional_json(c.collective_slowdown)}};
  out["curves"] = list(c.curves, curve_json);
  out["peer_waits"] = named(c.peer_wait_us, kind_name);
  out["waking"] = {{"us", c.waking_us}};
  out["blocking"] = ordered_json::array();
  for (size_t kind = 0; kind < c.blocking.size(); ++kind) {
    if (c.blocking[kind]) {
      out["blocking"].push_back(name_of(static_cast<CollectiveKind>(kind)));
    }
  }
  out["emulated"] = c.emulated.empty() ? ordered_json()
                                       : ordered_json{{"hardware", c.emulated},
                                                      {"overhead_us", c.collective_overhead_us}};
  out["hidden"] = c.hidden;
  out["unknown"] = c.unknown;
  return plan::json_text(out, 1) + "\n";
}

Calibration parse_calibration(std::string_view json, const std::string& source) {
  const nlohmann::json document = plan::parse_json(json, source);
  const JsonNode root(document, source);
  root.expect_object("a calibration, as `shardlens calibrate` writes it");
  root.allow_only(kKeys);
  (void)root.require("version").integer(1, 1);
  Calibration out;
  out.sources = root.require("sources").strings("strings");
  out.host = static_cast<HostMode>(root.require("host").one_of(kHosts));
  out.ranks = root.require("ranks").integer(1, 1 << 20);
  for (const JsonNode& each : root.require("classes").items("classes of kernels")) {
    out.classes.push_back(read_class(each));
  }
  for (const JsonNode& each : root.require("operators").items("measured operators")) {
    out.operators.push_back(read_operator(each));
  }
  read_named(root.require("actions"), out.action_us, op_name);
  read_named(root.require("hooks"), out.hook_us, hook_name);
  if (const auto communication = root.find("communication")) {
    communication->expect_object("host times by kind of collective");
    for (const std::string& name : communication->keys()) {
      const auto kind = parse_collective(name);
      if (!kind) {
        communication->require(name).fail("expected the name of a collective");
      }
      const JsonNode times = communication->require(name);
      out.communication[static_cast<size_t>(*kind)] = {amount_of(times, "us"),
                                                       amount_of(times, "before_wait_us")};
    }
  }
  const JsonNode copy = root.require("copy");
  out.copy_us_per_mb = amount_of(copy, "us_per_mb");
  if (const auto by_action = copy.find("by_action")) {
    read_copies(*by_action, out);
  }
  const JsonNode outside = root.require("outside");
  out.outside_us = amount_of(outside, "us");
  if (outside.find("norm_communication_us")) {  // otherwise it is part of "communication_us"
    out.norm_communication_us = amount_of(outside, "norm_communication_us");
  }
  out.outside_communication_us = amount_of(outside, "communication_us");
  const JsonNode slowdown = root.require("slowdown");
  out.compute_slowdown = optional_of(slowdown, "compute", 1);
  out.collective_slowdown = optional_of(slowdown, "collectives", 1);
  for (const JsonNode& each : root.require("curves").items("measured curves")) {
    out.curves.push_back(read_measured_curve(each));
  }
  if (const auto waits = root.find("peer_waits")) {
    read_named(*waits, out.peer_wait_us, kind_name);
  }
  if (const auto waking = root.find("waking")) {
    out.waking_us = amount_of(*waking, "us");
  }
  if (const auto blocking = root.find("blocking")) {
    for (const JsonNode& each : blocking->items("kinds of collectives")) {
      const auto kind = parse_collective(each.string());
      if (!kind) {
        each.fail("expected the name of a collective");
      }
      out.blocking[static_cast<size_t>(*kind)] = true;
    }
  }
  const JsonNode emulated = root.require("emulated");
  if (!emulated.is_null()) {
    out.emulated = emulated.require("hardware").string();
    out.collective_overhead_us = amount_of(emulated, "overhead_us");
  }
  out.hidden = root.require("hidden").strings("strings");
  out.unknown = root.require("unknown").strings("strings");
  return out;
}

Calibration load_calibration(const std::string& path) {
  return parse_calibration(plan::read_text_file(path), path);
}

}  // namespace shardlens::sim
