#pragma once

#include <span>
#include <string>
#include <string_view>

namespace shardlens::cli {

// A JSON Schema of docs/schemas, compiled into the program.
struct Schema {
  std::string_view name, text;  // "analyze"; the file's contents
};

// In alphabetical order. Defined in a file that CMake makes.
[[nodiscard]] std::span<const Schema> schemas();

// The description of a schema, in one line.
[[nodiscard]] std::string description_of(const Schema& schema);

// The schema with those that it refers to in "$defs", so that it is valid without other files.
[[nodiscard]] std::string self_contained(const Schema& schema);

}  // namespace shardlens::cli
