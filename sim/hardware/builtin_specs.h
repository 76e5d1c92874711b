#pragma once

#include <span>
#include <string_view>

namespace shardlens::sim {

struct BuiltinSpec {  // a machine that is part of the program
  std::string_view name, json;
};

// The files of sim/hardware/specs; CMake generates the table (builtin_specs.cpp.in).
[[nodiscard]] std::span<const BuiltinSpec> builtin_specs();
// The text of stacks.json.
[[nodiscard]] std::string_view builtin_stacks_json();

}  // namespace shardlens::sim
