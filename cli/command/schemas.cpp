#include "cli/command/schemas.h"

#include <set>

#include <nlohmann/json.hpp>

#include "core/json/json_dump.h"

namespace shardlens::cli {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kEnding = ".json";

// Adds the schemas that `json` refers to by a file's name, and those that these refer to.
void add_references(const ordered_json& json, std::set<std::string_view>& names) {
  if (json.is_object() && json.contains("$ref")) {
    const std::string reference = json["$ref"].get<std::string>();
    const std::string file = reference.substr(0, reference.find('#'));
    for (const Schema& schema : schemas()) {
      if (file == std::string(schema.name) + std::string(kEnding) &&
          names.insert(schema.name).second) {
        add_references(ordered_json::parse(schema.text), names);
      }
    }
  }
  for (const ordered_json& part : json) {
    if (part.is_structured()) {
      add_references(part, names);
    }
  }
}

}  // namespace

std::string description_of(const Schema& schema) {
  return ordered_json::parse(schema.text).at("description").get<std::string>();
}

std::string self_contained(const Schema& schema) {
  ordered_json out = ordered_json::parse(schema.text);
  std::set<std::string_view> names{schema.name};
  add_references(out, names);
  names.erase(schema.name);
  for (const Schema& other : schemas()) {
    if (names.contains(other.name)) {
      out["$defs"][std::string(other.name) + std::string(kEnding)] =
          ordered_json::parse(other.text);
    }
  }
  return plan::json_text(out, 2) + "\n";
}

}  // namespace shardlens::cli
