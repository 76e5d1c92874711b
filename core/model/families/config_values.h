#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/json/json_reader.h"

// Values of a config.json as the families read them. Errors of all: InputError with the place in
// the file and what was expected.
namespace shardlens::plan {

// Bounds far above any real model. They prevent overflow of int64 sizes, and a damaged file from
// exhausting memory.
inline constexpr int64_t kLargestWidth = int64_t{1} << 20;
inline constexpr int64_t kLargestVocabulary = int64_t{1} << 27;
inline constexpr int64_t kLargestLayers = 4096;
inline constexpr int64_t kLargestExperts = 4096;
inline constexpr int64_t kLargestPositions = int64_t{1} << 31;

// The first of `keys` that the file has (with transformers' attribute_map, gpt2 may use either
// name).
[[nodiscard]] std::optional<JsonNode> find_any(const JsonNode& root,
                                               std::initializer_list<std::string_view> keys);
[[nodiscard]] int64_t integer_or(const std::optional<JsonNode>& node,
                                 int64_t fallback,
                                 int64_t low,
                                 int64_t high);
// For keys that transformers declares optional: null means absent.
[[nodiscard]] int64_t optional_integer(const std::optional<JsonNode>& node,
                                       int64_t fallback,
                                       int64_t low,
                                       int64_t high);
[[nodiscard]] bool boolean_or(const JsonNode& root, std::string_view key, bool fallback);
[[nodiscard]] double number_or(
    const JsonNode& root, std::string_view key, double fallback, double low, double high);
[[nodiscard]] std::string activation(const JsonNode& root,
                                     std::string_view key,
                                     const std::string& fallback);
// `what`, followed by the command that makes a model.json of the config.json of `node`.
[[nodiscard]] std::string unsupported(const JsonNode& node, const std::string& what);
// Refuses keys that are neither in one of `known` nor known to leave the model's structure as it
// is. A key that is null or false switches nothing on and passes.
void refuse_unknown_keys(const JsonNode& root,
                         std::initializer_list<std::span<const std::string_view>> known);

}  // namespace shardlens::plan
