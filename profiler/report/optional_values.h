#pragma once

#include <optional>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace shardlens::report {

// An optional value in JSON and in a CSV cell: null and "" if it is absent.
template <typename T>
[[nodiscard]] nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}
template <typename T>
[[nodiscard]] std::string or_empty(const std::optional<T>& value) {
  return value ? fmt::format("{}", *value) : "";
}

}  // namespace shardlens::report
