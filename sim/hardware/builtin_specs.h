#pragma once

#include <span>
#include <string_view>

namespace shardlens::sim {

struct BuiltinSpec {
  std::string_view name, json;
};

// The files of sim/hardware/specs; CMake makes the table (builtin_specs.cpp.in).
[[nodiscard]] std::span<const BuiltinSpec> builtin_specs();
// stacks.json.
[[nodiscard]] std::string_view builtin_stacks_json();

}  // namespace shardlens::sim
