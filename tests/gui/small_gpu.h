#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

#include "core/base/units.h"

namespace shardlens::gui {

// Writes the spec of 8xH100 with GPUs whose allocator can reserve `available`; returns its path.
inline std::string small_gpu(const std::filesystem::path& directory, Bytes available) {
  std::ifstream in(std::string(SHARDLENS_TEST_DATA) + "/../../sim/hardware/specs/8xH100.json");
  nlohmann::json spec = nlohmann::json::parse(in);
  Bytes outside = 0;
  for (const auto& part : spec.at("outside_memory")) {
    outside += part.at("value").get<Bytes>();
  }
  spec.at("gpu").at("memory_bytes").at("value") = outside + available;
  const std::filesystem::path path = directory / "small.json";
  std::ofstream(path) << spec.dump();
  return path.string();
}

}  // namespace shardlens::gui
