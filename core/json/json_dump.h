#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "core/base/shown.h"

namespace shardlens::plan {

// Replaces bytes of strings in `json` that are not UTF-8 by "\xNN".
template <typename Json>
void escape_bytes(Json& json) {
  if (json.is_string()) {
    json = escaped_bytes(json.template get_ref<const std::string&>());
  } else if (json.is_structured()) {
    for (Json& each : json) {
      escape_bytes(each);
    }
  }
}

// The text of a JSON document: nlohmann's dump(). Names of files need not be UTF-8, which JSON's
// strings are; their other bytes become "\xNN", so that names that differ still do.
template <typename Json>
[[nodiscard]] std::string json_text(const Json& json, int indent = -1) {
  try {
    return json.dump(indent);
  } catch (const nlohmann::json::type_error&) {  // a string is not UTF-8
    Json escaped = json;
    escape_bytes(escaped);
    return escaped.dump(indent);
  }
}

}  // namespace shardlens::plan
