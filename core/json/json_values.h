#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <nlohmann/json.hpp>

namespace shardlens::plan {

// parse_json(), or nullopt where it throws; for text that is left out if it is not valid.
[[nodiscard]] std::optional<nlohmann::json> try_parse_json(std::string_view text);

// The value of a JSON integer; nullopt for another value, or one outside of 64 bits.
[[nodiscard]] std::optional<int64_t> integer_of(const nlohmann::json& value);

}  // namespace shardlens::plan
