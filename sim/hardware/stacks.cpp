#include "sim/hardware/stacks.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/json/json_reader.h"
#include "sim/hardware/builtin_specs.h"

namespace shardlens::sim {
namespace {

using plan::JsonNode;
using Names = std::vector<std::string>;

Names texts(const JsonNode& parent, std::string_view key) {
  const auto node = parent.find(key);
  return node ? node->strings("a list of strings") : Names();
}

Stack read_stack(const JsonNode& node, const std::string& source) {
  static const Names kKeys{"name",  "default",  "gpu_types", "sources",
                           "notes", "hardware", "plan",      "software"};
  node.expect_object("a stack");
  node.allow_only(kKeys);
  Stack stack;
  stack.name = node.require("name").string();
  if (const auto is_default = node.find("default")) {
    stack.is_default = is_default->boolean();
  }
  stack.gpu_types = texts(node, "gpu_types");
  stack.sources = texts(node, "sources");
  stack.notes = texts(node, "notes");
  stack.hardware = load_hardware(node.require("hardware").string());
  stack.hardware.software = read_software(node.require("software"));
  stack.plan = plan::parse_plan(node.require("plan").json().dump(), source);
  return stack;
}

bool any_part(const Names& parts, std::string_view text) {
  return parts.empty() || std::any_of(parts.begin(), parts.end(), [text](const std::string& part) {
           return text.find(part) != std::string_view::npos;
         });
}

}  // namespace

FittedStacks parse_stacks(std::string_view json, const std::string& source) {
  static const Names kKeys{"version", "stacks", "fitted"};
  const nlohmann::json document = plan::parse_json(json, source);
  const JsonNode root(document, source);
  root.expect_object("fitted stacks");
  root.allow_only(kKeys);
  (void)root.require("version").integer(1, 1);
  FittedStacks out;
  for (const JsonNode& each : root.require("stacks").items("a list of stacks")) {
    out.stacks.push_back(read_stack(each, source));
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

const Stack* default_stack(std::string_view hardware) {
  const Names named = hardware_names();
  if (std::find(named.begin(), named.end(), hardware) == named.end()) {
    return nullptr;
  }
  const std::vector<Stack>& stacks = builtin_stacks().stacks;
  const auto found = std::find_if(stacks.begin(), stacks.end(), [hardware](const Stack& stack) {
    return stack.is_default && stack.hardware.name == hardware;
  });
  return found == stacks.end() ? nullptr : &*found;
}

HardwareSpec default_hardware(const std::string& hardware) {
  HardwareSpec out = load_hardware(hardware);
  if (const Stack* stack = default_stack(hardware)) {
    out.software = stack->hardware.software;
  }
  return out;
}

HardwareSpec run_by_pytorch(HardwareSpec hardware) {
  hardware.software.unit_us = hardware.pytorch_unit_us;
  return hardware;
}

HardwareSpec under_stack(HardwareSpec hardware, std::string_view name) {
  Names names;
  for (const Stack& stack : builtin_stacks().stacks) {
    names.push_back(stack.name);
    if (stack.name != name) {
      continue;
    }
    if (stack.hardware.gpu.name != hardware.gpu.name) {
      throw InputError("--stack",
                       fmt::format("'{}' was fitted to {}, but {} has {}", name,
                                   stack.hardware.gpu.name, hardware.name, hardware.gpu.name));
    }
    hardware.software = stack.hardware.software;
    return hardware;
  }
  names.emplace_back(kTransformersStack);
  names.emplace_back(kTorchtitanStack);
  names.emplace_back(kBareStack);
  throw InputError("--stack", fmt::format("unknown stack '{}'; known: {}{}", name,
                                          plan::quoted_list(names), plan::suggestion(name, names)));
}

}  // namespace shardlens::sim
