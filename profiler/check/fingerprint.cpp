#include <array>
#include <map>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/plan/plan.h"
#include "profiler/check/run_summary.h"

namespace shardlens::check {
namespace {

using nlohmann::json;

// Flags of a run that change what a step does or how fast it is, except those in the plan.
constexpr std::array kOptions{"device", "backend",   "world_size", "threads", "force_collectives",
                              "batch",  "seq",       "accumulate", "no_sync", "optimizer",
                              "clip",   "precision", "hardware"};

std::string text_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void put(std::map<std::string, std::string>& into,
         const json& from,
         const char* key,
         const std::string& as) {
  if (const auto found = from.find(key); found != from.end() && !found->is_null()) {
    into[as] = text_of(*found);
  }
}

// "8 × NVIDIA H200", from Kineto's deviceProperties.
std::string devices_of(const std::string& properties) {
  const json list = json::parse(properties, nullptr, false);
  std::map<std::string, int> names;
  if (list.is_array()) {
    for (const json& device : list) {
      if (device.is_object() && device.contains("name")) {
        ++names[text_of(device["name"])];
      }
    }
  }
  std::string out;
  for (const auto& [name, count] : names) {
    out += fmt::format("{}{} × {}", out.empty() ? "" : ", ", count, name);
  }
  return out;
}

}  // namespace

Fingerprint fingerprint_of(const trace::Run& run) {
  Fingerprint out;
  const trace::Metadata& metadata = run.traces.front().metadata;
  if (!metadata.backend.empty()) {
    out.machine["backend"] = metadata.backend;
  }
  if (metadata.world_size) {
    out.machine["world_size"] = std::to_string(*metadata.world_size);
  }
  if (const std::string devices = devices_of(metadata.device_properties); !devices.empty()) {
    out.machine["gpus"] = devices;
  }
  for (const char* key : {"cuda_driver_version", "cuda_runtime_version", "cupti_version"}) {
    if (const auto found = metadata.other.find(key); found != metadata.other.end()) {
      out.machine[key] = found->second;
    }
  }
  if (const auto nccl = metadata.other_distributed.find("nccl_version");
      nccl != metadata.other_distributed.end()) {
    out.machine["nccl_version"] = nccl->second;
  }
  const json environment = json::parse(run.environment, nullptr, false);
  if (environment.is_object()) {
    const json options = environment.value("options", json::object());
    for (const char* key : kOptions) {
      put(out.machine, options, key, key);
    }
    if (const auto hardware = environment.find("hardware"); hardware != environment.end()) {
      if (hardware->is_object()) {
        put(out.machine, *hardware, "cpu", "cpu");
        put(out.machine, *hardware, "cores", "cores");
        put(out.machine, *hardware, "clocks", "clocks");
        put(out.versions, *hardware, "host", "host");
        put(out.versions, *hardware, "system", "system");
      } else {
        out.machine["hardware"] = text_of(*hardware);
      }
    }
    const json versions = environment.value("versions", json::object());
    for (const auto& [key, value] : versions.items()) {
      out.versions[key] = text_of(value);
    }
  }
  if (run.planned) {
    int64_t numel = 0;
    const auto& parameters = run.planned->plan.tree.parameters;
    for (const plan::Parameter& p : parameters) {
      numel += p.numel;
    }
    out.machine["model"] = fmt::format("{} parameters in {} tensors", numel, parameters.size());
    out.plan = plan::to_json(run.planned->plan.plan);
  }
  return out;
}

}  // namespace shardlens::check
