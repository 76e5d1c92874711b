#include "sim/hardware/hardware_spec.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/json/json_reader.h"
#include "sim/hardware/builtin_specs.h"
#include "sim/hardware/curve_json.h"

namespace shardlens::sim {
namespace {

using plan::JsonNode;
using Names = std::vector<std::string>;

constexpr size_t kMostDigits = 4;       // of a number of nodes
constexpr size_t kMostLinks = 100'000;  // of a node; a ring through 4096 GPUs then takes seconds

// A constant is {"value": …, "source": "…"}: every number must have a source. It may have a
// "range": [low, high].
double constant(const JsonNode& parent, std::string_view key, double low, double high) {
  static const Names kKeys{"value", "source", "range"};
  const JsonNode node = parent.require(key);
  node.expect_object("a constant: {\"value\": …, \"source\": …}");
  node.allow_only(kKeys);
  if (node.require("source").string().empty()) {
    node.require("source").fail("expected where the value comes from");
  }
  const JsonNode value = node.require("value");
  const double number = value.number();
  if (!(number >= low && number <= high)) {
    value.fail(fmt::format("expected a number from {} to {}, found {}", low, high, value.shown()));
  }
  return number;
}

// The range of work whose rate (`is_time`: whose duration) is the constant. A constant without a
// range is off by at most `otherwise`.
ConstantRange range_of(const JsonNode& parent,
                       std::string_view key,
                       ConstantRange otherwise,
                       bool is_time = false) {
  const auto node = parent.find(key);
  const auto range = node ? node->find("range") : std::nullopt;
  if (!range) {
    return otherwise;
  }
  const std::vector<JsonNode> ends = range->items("a range: [low, high]");
  const double value = node->require("value").number();
  if (ends.size() != 2 ||
      !(ends[0].number() > 0 && ends[0].number() <= value && value <= ends[1].number())) {
    range->fail(fmt::format("expected [low, high] around {}, above 0", value));
  }
  const double below = std::log(value / ends[0].number()),
               above = std::log(ends[1].number() / value);
  return is_time ? ConstantRange{below, above} : ConstantRange{above, below};
}

// Ranges of constants that state none: of measured ones, and of the host's, which were measured on
// few machines.
constexpr ConstantRange kUsual{0.1, 0.1}, kOfHost{0.7, 0.7};

ConstantRanges stated_ranges(const JsonNode& root) {
  const JsonNode gpu = root.require("gpu"), fabric = root.require("fabric");
  ConstantRanges out;
  out.products = range_of(gpu, "gemm_efficiency", kUsual);
  out.attention = range_of(gpu, "attention_tflops", kUsual);
  out.memory = range_of(gpu, "copy_efficiency", kUsual);
  out.collectives = range_of(fabric, "ring_gbps", kUsual);
  const ConstantRange operators = range_of(root, "operator_us", kOfHost, /*is_time=*/true),
                      units = range_of(root, "pytorch_unit_us", operators, /*is_time=*/true);
  out.host = {std::max(operators.faster, units.faster), std::max(operators.slower, units.slower)};
  return out;
}

constexpr double kMost = 1e15;
constexpr double kLeast = 1e-9;  // rates are divisors, so they must not be 0

AttentionKernel read_attention(const JsonNode& node, const std::string& prefix) {
  AttentionKernel out;
  if (node.find(prefix + "_tflops")) {
    out.tflops = constant(node, prefix + "_tflops", kLeast, kMost);
    out.backward_ratio = constant(node, prefix + "_backward_ratio", kLeast, 1);
    out.range = range_of(node, prefix + "_tflops", kUsual);
  }
  return out;
}

GpuSpec read_gpu(const JsonNode& node) {
  static const Names kKeys{"name",
                           "sms",
                           "memory_bytes",
                           "memory_gbps",
                           "copy_efficiency",
                           "elementwise_rate",
                           "fp32_tflops",
                           "half_tflops",
                           "fp8_tflops",
                           "mxfp8_tflops",
                           "nvfp4_tflops",
                           "fp8_efficiency",
                           "random_data_rate",
                           "power_watts",
                           "gemm_efficiency",
                           "gemm_tile_exponent",
                           "gemm_wave_us",
                           "gemm_start_us",
                           "grouped_efficiency",
                           "attention_tflops",
                           "attention_backward_ratio",
                           "cudnn_attention_tflops",
                           "cudnn_attention_backward_ratio",
                           "flex_attention_tflops",
                           "flex_attention_backward_ratio",
                           "efficient_attention_tflops",
                           "efficient_attention_backward_ratio",
                           "kernel_us",
                           "host_link_gbps",
                           "host_memory_gbps"};
  node.expect_object("a GPU");
  node.allow_only(kKeys);
  GpuSpec gpu;
  gpu.name = node.require("name").string();
  gpu.sms = static_cast<int64_t>(constant(node, "sms", 1, 1e5));
  gpu.memory = static_cast<Bytes>(constant(node, "memory_bytes", 1, kMost));
  gpu.memory_gbps = constant(node, "memory_gbps", kLeast, kMost);
  gpu.copy_efficiency = constant(node, "copy_efficiency", kLeast, 1);
  gpu.elementwise_rate =
      node.find("elementwise_rate") ? constant(node, "elementwise_rate", kLeast, 1) : 1;
  gpu.fp32_tflops = constant(node, "fp32_tflops", kLeast, kMost);
  gpu.half_tflops = constant(node, "half_tflops", kLeast, kMost);
  for (const auto& [key, rate] : {std::pair{"fp8_tflops", &gpu.fp8_tflops},
                                  {"mxfp8_tflops", &gpu.mxfp8_tflops},
                                  {"nvfp4_tflops", &gpu.nvfp4_tflops}}) {
    *rate = node.find(key) ? constant(node, key, kLeast, kMost) : 0;
  }
  gpu.fp8_efficiency =
      node.find("fp8_efficiency") ? constant(node, "fp8_efficiency", kLeast, 1) : 0;
  gpu.random_data_rate =
      node.find("random_data_rate") ? constant(node, "random_data_rate", kLeast, 1) : 1;
  gpu.power_watts = node.find("power_watts") ? constant(node, "power_watts", 1, 1e5) : 0;
  gpu.gemm_efficiency = constant(node, "gemm_efficiency", kLeast, 1);
  gpu.gemm_tile_exponent = constant(node, "gemm_tile_exponent", 0, 1);
  gpu.gemm_wave_us = constant(node, "gemm_wave_us", 0, 1e3);
  gpu.gemm_start_us = constant(node, "gemm_start_us", 0, 1e3);
  gpu.grouped_efficiency =
      node.find("grouped_efficiency") ? constant(node, "grouped_efficiency", kLeast, 1) : 1;
  gpu.cudnn_attention = read_attention(node, "cudnn_attention");
  gpu.flex_attention = read_attention(node, "flex_attention");
  gpu.efficient_attention = read_attention(node, "efficient_attention");
  gpu.attention_tflops = constant(node, "attention_tflops", kLeast, kMost);
  gpu.attention_backward_ratio = constant(node, "attention_backward_ratio", kLeast, 1);
  gpu.kernel_us = constant(node, "kernel_us", 0, 1e3);
  gpu.host_link_gbps = constant(node, "host_link_gbps", kLeast, kMost);
  if (node.find("host_memory_gbps")) {
    gpu.host_memory_gbps = constant(node, "host_memory_gbps", kLeast, kMost);
  }
  return gpu;
}

CollectiveCurve read_spec_curve(const JsonNode& node, int64_t gpus) {
  static const Names kKeys{"kind", "ranks", "source", "points"};
  node.expect_object("a measured curve");
  node.allow_only(kKeys);
  (void)node.require("source").string();
  CollectiveCurve curve = read_curve(node, gpus, [](const JsonNode& time) {
    const double us = time.number();
    if (!(us > 0 && us < 1e9)) {
      time.fail("expected microseconds above 0");
    }
    return us;
  });
  if (curve.points.size() < 2) {
    node.require("points").fail("expected at least two points");
  }
  return curve;
}

// An end of a link: a GPU of the node, or any other component by its name.
std::string read_end(const JsonNode& node, int64_t gpus) {
  const std::string name = node.string();
  const std::string_view number = std::string_view(name).substr(std::min<size_t>(3, name.size()));
  int64_t gpu = -1;
  if (name.starts_with("gpu") &&
      (std::from_chars(number.data(), number.data() + number.size(), gpu).ptr !=
           number.data() + number.size() ||
       gpu < 0 || gpu >= gpus)) {
    node.fail(fmt::format("expected gpu0 to gpu{}, or the name of a switch, found {}", gpus - 1,
                          node.shown()));
  }
  return name;
}

std::vector<TopologyLink> read_links(const JsonNode& node, int64_t gpus) {
  static const Names kKeys{"a", "b", "gbps", "source"};
  const std::vector<JsonNode> items = node.items("links");
  if (items.size() > kMostLinks) {
    node.fail(fmt::format("expected at most {} links, found {}", kMostLinks, items.size()));
  }
  std::vector<TopologyLink> links;
  for (const JsonNode& each : items) {
    each.expect_object("a link: {\"a\": \"gpu0\", \"b\": …, \"gbps\": …, \"source\": …}");
    each.allow_only(kKeys);
    TopologyLink& link = links.emplace_back();
    link.a = read_end(each.require("a"), gpus);
    link.b = read_end(each.require("b"), gpus);
    link.gbps = each.require("gbps").number();
    if (!(link.gbps >= kLeast && link.gbps <= kMost)) {
      each.require("gbps").fail("expected GB/s above 0");
    }
    (void)each.require("source").string();
  }
  return links;
}

FabricSpec read_fabric(const JsonNode& node, int64_t gpus) {
  static const Names kKeys{
      "link",       "ring_gbps",           "reduce_scatter_ratio", "ll_gbps", "sms",   "nvls_gbps",
      "nvls_ranks", "collective_slowdown", "network_gbps",         "links",   "curves"};
  static const Names kLinks{"nvlink", "pcie"};
  node.expect_object("a fabric");
  node.allow_only(kKeys);
  FabricSpec fabric;
  fabric.link = static_cast<Link>(node.require("link").one_of(kLinks));
  if (const auto links = node.find("links")) {
    fabric.links = read_links(*links, gpus);
  }
  if (node.find("ring_gbps") || fabric.links.empty()) {
    fabric.ring_gbps = constant(node, "ring_gbps", kLeast, kMost);
  } else {
    fabric.ring_gbps = ring_gbps(fabric.links, static_cast<int>(gpus));
    if (gpus > 1 && fabric.ring_gbps == 0) {
      node.require("links").fail("no ring through all GPUs: some cannot reach each other");
    }
  }
  if (node.find("nvls_gbps")) {
    fabric.nvls_gbps = constant(node, "nvls_gbps", kLeast, kMost);
    fabric.nvls_ranks = static_cast<int64_t>(constant(node, "nvls_ranks", 2, kMost));
  }
  fabric.reduce_scatter_ratio = constant(node, "reduce_scatter_ratio", kLeast, 1);
  fabric.ll_gbps = constant(node, "ll_gbps", kLeast, kMost);
  fabric.sms = static_cast<int64_t>(constant(node, "sms", 0, 1e4));
  if (node.find("collective_slowdown")) {
    fabric.collective_slowdown = constant(node, "collective_slowdown", 1, 100);
  }
  if (node.find("network_gbps")) {
    fabric.network_gbps = constant(node, "network_gbps", kLeast, kMost);
  }
  if (const auto curves = node.find("curves")) {
    for (const JsonNode& curve : curves->items("measured curves")) {
      fabric.curves.push_back(read_spec_curve(curve, gpus));
    }
  }
  return fabric;
}

OutsideMemory read_outside(const JsonNode& node) {
  static const Names kKeys{"context_bytes", "nccl_bytes", "cublas_bytes"};
  node.expect_object("memory outside of the allocator");
  node.allow_only(kKeys);
  const auto bytes = [&](const std::string& key) {
    return node.find(key) ? static_cast<Bytes>(constant(node, key, 0, kMost)) : 0;
  };
  return {.context = bytes(kKeys[0]), .nccl = bytes(kKeys[1]), .cublas = bytes(kKeys[2])};
}

}  // namespace

double read_constant(const JsonNode& parent, std::string_view key, double low, double high) {
  return constant(parent, key, low, high);
}

ConstantRange together(const ConstantRange& a, const ConstantRange& b) {
  // std::hypot needs glibc 2.35, and the wheel runs with older ones.
  const auto added = [](double x, double y) { return std::sqrt(x * x + y * y); };
  return {added(a.faster, b.faster), added(a.slower, b.slower)};
}

SoftwareSpec read_software(const JsonNode& node) {
  constexpr double kMostTimes = 100;
  SoftwareSpec out;
  const std::pair<std::string, double*> rates[] = {{"matrix_rate", &out.matrix_rate},
                                                   {"attention_rate", &out.attention_rate},
                                                   {"head64_rate", &out.head64_rate},
                                                   {"collective_rate", &out.collective_rate}};
  const std::pair<std::string, double*> passes[] = {{"elementwise_passes", &out.elementwise_passes},
                                                    {"loss_passes", &out.loss_passes},
                                                    {"optimizer_passes", &out.optimizer_passes}};
  Names known{"step_us", "unit_us"};
  node.expect_object("a software stack's constants");
  const auto read = [&](const auto& table, double low, double high) {
    for (const auto& [key, value] : table) {
      known.push_back(key);
      *value = node.find(key) ? constant(node, key, low, high) : *value;
    }
  };
  read(rates, 1.0 / kMostTimes, kMostTimes);
  read(passes, 1.0 / kMostTimes, kMostTimes);
  out.step_us = node.find("step_us") ? constant(node, "step_us", 0, 1e9) : 0;
  out.unit_us = node.find("unit_us") ? constant(node, "unit_us", 0, 1e6) : 0;
  node.allow_only(known);
  return out;
}

HardwareSpec parse_hardware(std::string_view json, const std::string& source) {
  static const Names kKeys{
      "version",  "name",        "gpus",      "nodes",           "gpu",           "fabric",
      "software", "operator_us", "action_us", "pytorch_unit_us", "outside_memory"};
  const nlohmann::json document = plan::parse_json(json, source);
  const JsonNode root(document, source);
  root.expect_object("a hardware spec");
  root.allow_only(kKeys);
  (void)root.require("version").integer(1, 1);
  HardwareSpec spec;
  spec.name = root.require("name").string();
  spec.gpus = root.require("gpus").integer(1, 4096);
  spec.nodes = root.find("nodes") ? root.require("nodes").integer(1, 4096) : 1;
  spec.gpu = read_gpu(root.require("gpu"));
  spec.fabric = read_fabric(root.require("fabric"), spec.gpus);
  if (spec.nodes > 1 && spec.fabric.network_gbps == 0) {
    root.require("fabric").fail("several nodes need network_gbps: GB/s of the network per GPU");
  }
  if (const auto software = root.find("software")) {
    spec.software = read_software(*software);
  }
  if (const auto outside = root.find("outside_memory")) {
    spec.outside = read_outside(*outside);
  }
  spec.operator_us = constant(root, "operator_us", 0, 1e6);
  spec.action_us = constant(root, "action_us", 0, 1e6);
  if (root.find("pytorch_unit_us")) {
    spec.pytorch_unit_us = constant(root, "pytorch_unit_us", 0, 1e6);
  }
  spec.ranges = stated_ranges(root);
  if (spec.fabric.sms >= spec.gpu.sms) {
    root.require("fabric").require("sms").fail("communication would take every SM of the GPU");
  }
  return spec;
}

std::vector<std::string> hardware_names() {
  Names names;
  for (const BuiltinSpec& spec : builtin_specs()) {
    names.emplace_back(spec.name);
  }
  return names;
}

std::string_view node_of(std::string_view hardware) {
  const auto is_name = [](std::string_view text) {
    return std::ranges::any_of(builtin_specs(),
                               [text](const BuiltinSpec& spec) { return spec.name == text; });
  };
  if (is_name(hardware)) {
    return hardware;
  }
  const size_t digits = hardware.find_first_not_of("0123456789");
  if (digits == 0 || digits > kMostDigits || digits == std::string_view::npos ||
      hardware[digits] != 'x' || !is_name(hardware.substr(digits + 1))) {
    return "";
  }
  return hardware.substr(digits + 1);
}

HardwareSpec load_hardware(std::string_view name_or_path) {
  const std::string_view node = node_of(name_or_path);
  for (const BuiltinSpec& spec : builtin_specs()) {
    if (spec.name != node) {
      continue;
    }
    HardwareSpec out = parse_hardware(spec.json, std::string(name_or_path));
    if (node == name_or_path) {
      return out;
    }
    std::from_chars(name_or_path.data(), node.data() - 1, out.nodes);
    out.name = name_or_path;
    if (out.nodes == 0 || (out.nodes > 1 && out.fabric.network_gbps == 0)) {
      throw InputError("--hardware",
                       fmt::format("'{}': {}", name_or_path,
                                   out.nodes == 0 ? "expected one node or more"
                                                  : "the network between its nodes is not known; "
                                                    "expected a spec file with network_gbps"));
    }
    return out;
  }
  const std::filesystem::path path{std::string(name_or_path)};
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    const Names names = hardware_names();
    throw InputError("--hardware",
                     fmt::format("'{}' is neither a spec nor a file; specs: {}{}", name_or_path,
                                 plan::quoted_list(names), plan::suggestion(name_or_path, names)));
  }
  return parse_hardware(plan::read_text_file(path), path.string());
}

}  // namespace shardlens::sim
