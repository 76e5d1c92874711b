#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace shardlens::cli {

// A YAML document as JSON. libyaml reads the YAML 1.1 that PyYAML reads, and plain words become
// booleans, numbers and null as in its safe_load(): `yes`, `on` and `no` too.
//
// Errors  InputError naming the file and line: YAML that is damaged, nested deeper than 64 levels,
//         or has anchors, tags, a key twice, several documents or keys that are no words.
[[nodiscard]] nlohmann::json parse_yaml(std::string_view text, const std::string& source);

}  // namespace shardlens::cli
