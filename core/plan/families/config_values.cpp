#include "core/plan/families/config_values.h"

#include <vector>

#include <fmt/format.h>

namespace shardlens::plan {

std::optional<JsonNode> find_any(const JsonNode& root,
                                 std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    if (auto node = root.find(key)) {
      return node;
    }
  }
  return std::nullopt;
}

int64_t integer_or(const std::optional<JsonNode>& node,
                   int64_t fallback,
                   int64_t low,
                   int64_t high) {
  return node ? node->integer(low, high) : fallback;
}

int64_t optional_integer(const std::optional<JsonNode>& node,
                         int64_t fallback,
                         int64_t low,
                         int64_t high) {
  return node && !node->is_null() ? node->integer(low, high) : fallback;
}

bool boolean_or(const JsonNode& root, std::string_view key, bool fallback) {
  const auto node = root.find(key);
  return node && !node->is_null() ? node->boolean() : fallback;
}

double number_or(
    const JsonNode& root, std::string_view key, double fallback, double low, double high) {
  const auto node = root.find(key);
  if (!node || node->is_null()) {
    return fallback;
  }
  const double value = node->number();
  if (value < low || value > high) {
    node->fail(fmt::format("expected a number from {} to {}, found {}", low, high, node->shown()));
  }
  return value;
}

std::string activation(const JsonNode& root, std::string_view key, const std::string& fallback) {
  static const std::vector<std::string> kActivations{"silu", "gelu", "gelu_new", "relu"};
  const auto node = root.find(key);
  return node ? kActivations[node->one_of(kActivations)] : fallback;
}

}  // namespace shardlens::plan
