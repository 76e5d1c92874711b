#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace shardlens::plan {

// The text of a JSON file. Errors: InputError if the file cannot be read, is a directory, or is
// larger than 64 MiB.
[[nodiscard]] std::string read_text_file(const std::filesystem::path& path);

// Parses strict JSON: duplicate keys in an object, nesting deeper than 64 levels and text after the
// value are errors too. Errors: InputError "source#/pointer: …" or "source: … at byte N".
[[nodiscard]] nlohmann::json parse_json(std::string_view text, const std::string& source);

// "; did you mean 'x'?" or "", for messages.
[[nodiscard]] std::string suggestion(std::string_view seen, std::span<const std::string> valid);
// "'a', 'b', 'c'"
[[nodiscard]] std::string quoted_list(std::span<const std::string> names);

// A key as a part of a JSON pointer.
[[nodiscard]] std::string escape_token(std::string_view key);

// A value of a parsed document with its position, so that every error names the file, the JSON
// pointer, what was found and what was expected.
//
// Ownership  refers to the document and its source name; both must outlive it.
// Errors     every accessor throws InputError.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, const std::string& source)
      : value_(&value), source_(&source) {}

  [[noreturn]] void fail(const std::string& message) const;
  [[nodiscard]] std::string where() const;  // "plan.json#/units/0"
  [[nodiscard]] std::string shown() const;  // the value, shortened, for a message
  [[nodiscard]] const nlohmann::json& json() const { return *value_; }
  [[nodiscard]] const std::string& source() const { return *source_; }
  // `value` at this node's position; it must outlive the node that is returned.
  [[nodiscard]] JsonNode with(const nlohmann::json& value) const {
    JsonNode out = *this;
    out.value_ = &value;
    return out;
  }
  [[nodiscard]] bool is_null() const { return value_->is_null(); }

  // Objects. `find` returns nullopt for an absent key, but not for a null value.
  void expect_object(std::string_view what) const;
  void allow_only(std::span<const std::string> keys) const;
  [[nodiscard]] std::optional<JsonNode> find(std::string_view key) const;
  [[nodiscard]] JsonNode require(std::string_view key) const;
  [[nodiscard]] std::vector<std::string> keys() const;

  // Arrays.
  [[nodiscard]] std::vector<JsonNode> items(std::string_view what) const;
  [[nodiscard]] std::vector<std::string> strings(std::string_view what) const;

  // Scalars.
  [[nodiscard]] bool boolean() const;
  [[nodiscard]] int64_t integer(int64_t low = std::numeric_limits<int64_t>::min(),
                                int64_t high = std::numeric_limits<int64_t>::max()) const;
  [[nodiscard]] double number() const;
  [[nodiscard]] std::string string() const;
  // The index of the string in `names`; fails if it is not one of them.
  [[nodiscard]] size_t one_of(std::span<const std::string> names) const;

 private:
  [[nodiscard]] JsonNode child(const nlohmann::json& value, const std::string& token) const;

  const nlohmann::json* value_;
  const std::string* source_;
  std::string pointer_;
};

}  // namespace shardlens::plan
