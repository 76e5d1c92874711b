#include "sim/hardware/stacks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/json/json_reader.h"
#include "sim/hardware/builtin_specs.h"

namespace shardlens::sim {
namespace {

using plan::JsonNode;
using Names = std::vector<std::string>;

// Distance that another type of GPU has in addition, so that one with the same rates is not taken
// for the GPU itself.
constexpr double kOtherGpu = 1e-6;
constexpr double kMostRange = 5;  // a factor of 148

struct StackProgram {
  std::string_view stack;
  plan::Program program;
};
// torchtitan of May to October 2025: as 0.2.2, but attention is cuDNN's only on Blackwell.
// Source  its pull requests 1196 and 1776.
constexpr std::string_view kTorchtitan2025Stack = "torchtitan-2025";
constexpr std::array<StackProgram, 8> kStackPrograms{
    {{kTransformersStack, plan::Program::kTransformers},
     {kTransformersFlashStack, plan::Program::kTransformers},
     {kTorchtitanStack, plan::Program::kTorchtitan},
     {kTorchtitan2025Stack, plan::Program::kTorchtitan},
     {kTorchtitan2024Stack, plan::Program::kTorchtitan2024},
     {kTorchtitan03Stack, plan::Program::kTorchtitan03},
     {kSimpleFsdpStack, plan::Program::kSimpleFsdp},
     {kGraphTrainerStack, plan::Program::kGraphTrainer}}};

Names texts(const JsonNode& parent, std::string_view key) {
  const auto node = parent.find(key);
  return node ? node->strings("a list of strings") : Names();
}

FittedKinds read_fits(const JsonNode& node) {
  static const Names kKinds{"products", "attention", "memory", "collectives", "step"};
  FittedKinds out{
      .products = false, .attention = false, .memory = false, .collectives = false, .step = false};
  bool* const fits[] = {&out.products, &out.attention, &out.memory, &out.collectives, &out.step};
  for (const JsonNode& each : node.items("a list of kinds of work")) {
    *fits[each.one_of(kKinds)] = true;
  }
  return out;
}

Stack read_stack(const JsonNode& node, const std::string& source) {
  static const Names kKeys{"name",    "default", "program",  "rows", "fits",    "gpu_types",
                           "sources", "notes",   "hardware", "plan", "software"};
  static const Names kPrograms{"engine", "pytorch"};
  node.expect_object("a stack");
  node.allow_only(kKeys);
  Stack stack;
  stack.name = node.require("name").string();
  if (const auto is_default = node.find("default")) {
    stack.is_default = is_default->boolean();
  }
  if (const auto program = node.find("program")) {
    stack.pytorch = program->one_of(kPrograms) == 1;
  }
  if (const auto rows = node.find("rows")) {
    stack.rows = rows->integer(0, 1'000'000);
  }
  if (const auto fits = node.find("fits")) {
    stack.fits = read_fits(*fits);
  }
  stack.gpu_types = texts(node, "gpu_types");
  stack.sources = texts(node, "sources");
  stack.notes = texts(node, "notes");
  stack.hardware = load_hardware(node.require("hardware").string());
  stack.hardware.software = read_software(node.require("software"));
  stack.plan = plan::parse_plan(node.require("plan").json().dump(), source);
  return stack;
}

// Each constant of "ranges": {"faster", "slower"} of a kind of work.
ConstantRanges ranges_of_stacks(const JsonNode& node) {
  ConstantRanges out;
  const std::pair<std::string, ConstantRange*> table[] = {
      {"products", &out.products},       {"attention", &out.attention}, {"memory", &out.memory},
      {"collectives", &out.collectives}, {"remaining", &out.remaining}, {"experts", &out.experts},
      {"context", &out.context}};
  Names known{"step_us"};
  node.expect_object("ranges of constants");
  for (const auto& [key, range] : table) {
    known.push_back(key);
    if (const auto each = node.find(key)) {
      *range = {read_constant(*each, "faster", 0, kMostRange),
                read_constant(*each, "slower", 0, kMostRange)};
    }
  }
  out.step_us = node.find("step_us") ? read_constant(node, "step_us", 0, 1e9) : 0;
  node.allow_only(known);
  return out;
}

bool any_part(const Names& parts, std::string_view text) {
  return parts.empty() || std::any_of(parts.begin(), parts.end(), [text](const std::string& part) {
           return text.find(part) != std::string_view::npos;
         });
}

}  // namespace

FittedStacks parse_stacks(std::string_view json, const std::string& source) {
  static const Names kKeys{"version", "stacks", "fitted", "borrowed", "ideal", "assumed"};
  const nlohmann::json document = plan::parse_json(json, source);
  const JsonNode root(document, source);
  root.expect_object("fitted stacks");
  root.allow_only(kKeys);
  (void)root.require("version").integer(1, 1);
  FittedStacks out;
  for (const JsonNode& each : root.require("stacks").items("a list of stacks")) {
    out.stacks.push_back(read_stack(each, source));
  }
  if (const auto borrowed = root.find("borrowed")) {
    out.borrowed = ranges_of_stacks(*borrowed);
  }
  if (const auto ideal = root.find("ideal")) {
    out.ideal = ranges_of_stacks(*ideal);
  }
  if (const auto assumed = root.find("assumed")) {
    out.assumed = read_software(*assumed);
  }
  for (std::string& each : texts(root, "fitted")) {
    out.fitted.insert(std::move(each));
  }
  return out;
}

const FittedStacks& builtin_stacks() {
  static const FittedStacks kBuiltin =
      parse_stacks(builtin_stacks_json(), "sim/hardware/stacks.json");
  return kBuiltin;
}

const Stack* find_stack(const FittedStacks& stacks,
                        std::string_view gpu_type,
                        std::string_view source,
                        std::string_view notes) {
  const auto fits = [&](const Stack& stack) {
    return std::any_of(
               stack.gpu_types.begin(), stack.gpu_types.end(),
               [gpu_type](const std::string& type) { return gpu_type.starts_with(type); }) &&
           any_part(stack.sources, source) && any_part(stack.notes, notes);
  };
  const auto found = std::find_if(stacks.stacks.begin(), stacks.stacks.end(), fits);
  return found == stacks.stacks.end() ? nullptr : &*found;
}

bool is_of(const Stack& stack, const HardwareSpec& hardware) {
  return stack.hardware.gpu.name == hardware.gpu.name;
}

const Stack* nearest_stack(const std::vector<const Stack*>& among,
                           const HardwareSpec& hardware,
                           bool pytorch) {
  const auto distance = [&hardware](const Stack* stack) {
    const auto apart = [](double a, double b) { return std::abs(std::log(a / b)); };
    const GpuSpec &a = stack->hardware.gpu, &b = hardware.gpu;
    // A step needs more time for products than for what memory limits.
    return apart(a.half_tflops, b.half_tflops) + apart(a.memory_gbps, b.memory_gbps) / 2 +
           (is_of(*stack, hardware) ? 0 : kOtherGpu);
  };
  const Stack* nearest = nullptr;
  for (const Stack* each : among) {
    if (each->is_default && each->pytorch == pytorch &&
        (nearest == nullptr || distance(each) < distance(nearest))) {
      nearest = each;
    }
  }
  return nearest;
}

const Stack* default_stack(std::string_view hardware, bool pytorch) {
  if (node_of(hardware).empty()) {
    return nullptr;
  }
  std::vector<const Stack*> all;
  for (const Stack& each : builtin_stacks().stacks) {
    all.push_back(&each);
  }
  return nearest_stack(all, load_hardware(hardware), pytorch);
}

HardwareSpec under_stack(HardwareSpec hardware, const Stack& stack, const FittedStacks& stacks) {
  const bool own = stack.rows > 0 && is_of(stack, hardware);
  const FabricSpec& fabric = stack.hardware.fabric;
  hardware.software = stack.hardware.software;
  if (fabric.link != hardware.fabric.link) {
    // The stack's time per byte beyond that of the links belongs to its program, not to the links.
    const double more = (1 / hardware.software.collective_rate - 1) / fabric.ring_gbps;
    hardware.software.collective_rate = 1 / (1 + more * hardware.fabric.ring_gbps);
  }
  const double share = 1 / std::sqrt(1 + static_cast<double>(stack.rows));
  const auto range = [&](bool fitted, ConstantRange borrowed, ConstantRange stated) {
    // What the spec's own constants are off is in the fitted ones.
    return own && fitted ? ConstantRange{borrowed.faster * share, borrowed.slower * share}
                         : together(borrowed, stated);
  };
  ConstantRanges& ranges = hardware.ranges;
  const ConstantRanges& borrowed = stacks.borrowed;
  ranges.products = range(stack.fits.products, borrowed.products, ranges.products);
  ranges.attention = range(stack.fits.attention, borrowed.attention, ranges.attention);
  ranges.memory = range(stack.fits.memory, borrowed.memory, ranges.memory);
  ranges.collectives = range(stack.fits.collectives, borrowed.collectives, ranges.collectives);
  ranges.step_us = borrowed.step_us * (own && stack.fits.step ? share : 1);
  ranges.remaining = borrowed.remaining;
  ranges.experts = borrowed.experts;
  ranges.context = borrowed.context;
  return hardware;
}

HardwareSpec as_bare(HardwareSpec hardware) {
  const ConstantRanges& ideal = builtin_stacks().ideal;
  ConstantRanges& ranges = hardware.ranges;
  ranges.products = together(ranges.products, ideal.products);
  ranges.attention = together(ranges.attention, ideal.attention);
  ranges.memory = together(ranges.memory, ideal.memory);
  ranges.collectives = together(ranges.collectives, ideal.collectives);
  ranges.step_us = ideal.step_us;
  ranges.remaining = ideal.remaining;
  ranges.experts = builtin_stacks().borrowed.experts;
  ranges.context = builtin_stacks().borrowed.context;
  return hardware;
}

HardwareSpec hardware_under(const std::string& hardware, std::string_view stack, bool pytorch) {
  HardwareSpec out = load_hardware(hardware);
  const AttentionKernel& cudnn = out.gpu.cudnn_attention;
  const bool is_blackwell = out.gpu.mxfp8_tflops > 0;
  const bool calls_flash = stack == kTransformersFlashStack || stack == kTorchtitan2024Stack ||
                           (stack == kTorchtitan2025Stack && !is_blackwell);
  const bool calls_cudnn = pytorch && !calls_flash && cudnn.tflops > 0;
  if (calls_cudnn) {
    out.gpu.attention_tflops = cudnn.tflops;
    out.gpu.attention_backward_ratio = cudnn.backward_ratio;
    out.ranges.attention = cudnn.range;
  }
  const Stack* chosen = chosen_stack(hardware, stack, pytorch);
  out = chosen != nullptr ? under_stack(std::move(out), *chosen) : as_bare(std::move(out));
  if (calls_cudnn) {  // its rate has the clock that random numbers leave
    out.software.attention_rate =
        std::min(1.0, out.software.attention_rate / out.gpu.random_data_rate);
  }
  if (pytorch) {
    out.software.unit_us = out.pytorch_unit_us;
  }
  return out;
}

HardwareSpec default_hardware(const std::string& hardware, bool pytorch) {
  return hardware_under(hardware, "", pytorch);
}

std::optional<plan::Program> program_of_stack(std::string_view stack) {
  const auto* found = std::ranges::find(kStackPrograms, stack, &StackProgram::stack);
  return found == kStackPrograms.end() ? std::nullopt : std::optional(found->program);
}

plan::OptimizerImpl optimizer_by_default(plan::Program program) {
  return program == plan::Program::kTransformers ? plan::OptimizerImpl::kForeach
                                                 : plan::OptimizerImpl::kFused;
}

std::vector<std::string> stack_names() {
  Names names;
  for (const Stack& stack : builtin_stacks().stacks) {
    names.push_back(stack.name);
  }
  for (const StackProgram& each : kStackPrograms) {
    names.emplace_back(each.stack);
  }
  names.emplace_back(kBareStack);
  return names;
}

const Stack* chosen_stack(std::string_view hardware, std::string_view stack, bool pytorch) {
  return stack == kBareStack                        ? nullptr
         : stack.empty() || program_of_stack(stack) ? default_stack(hardware, pytorch)
                                                    : &stack_named(stack);
}

const Stack& stack_named(std::string_view name) {
  for (const Stack& stack : builtin_stacks().stacks) {
    if (stack.name == name) {
      return stack;
    }
  }
  const Names names = stack_names();
  throw InputError("--stack", fmt::format("unknown stack '{}'; known: {}{}", name,
                                          plan::quoted_list(names), plan::suggestion(name, names)));
}

}  // namespace shardlens::sim
