#include "core/json/json_reader.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/nearest.h"
#include "core/files/input_file.h"
#include "core/json/json_fault.h"
#include "core/json/json_values.h"

namespace shardlens::plan {
namespace {

using nlohmann::json;

constexpr uint64_t kLargestFile = uint64_t{64} << 20;
constexpr size_t kDeepest = 64;

// Tracks the position in the document and fails, with a JSON pointer, on a duplicate key or too
// deep nesting. A pass of its own: as a callback of the parser it would make the parser look
// through all elements of an array after each of them.
class DuplicateKeys final : public nlohmann::json_sax<json> {
 public:
  explicit DuplicateKeys(const std::string& source) : source_(source) {}

  bool null() override { return begin_value(); }
  bool boolean(bool /*value*/) override { return begin_value(); }
  bool number_integer(number_integer_t /*value*/) override { return begin_value(); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return begin_value(); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override {
    return begin_value();
  }
  bool string(string_t& /*value*/) override { return begin_value(); }
  bool binary(binary_t& /*value*/) override { return begin_value(); }
  bool start_object(size_t /*elements*/) override { return begin_structure(false); }
  bool start_array(size_t /*elements*/) override { return begin_structure(true); }
  bool end_object() override { return end_structure(); }
  bool end_array() override { return end_structure(); }
  bool key(string_t& key) override {
    Frame& frame = frames_.back();
    frame.key = key;
    if (!frame.keys.insert(key).second) {
      throw InputError(source_ + "#" + pointer(), fmt::format("key '{}' is given twice", key));
    }
    return true;
  }
  // The parser reports it again, with its position in lines.
  bool parse_error(size_t /*byte*/,
                   const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return false;
  }

 private:
  struct Frame {
    bool array;
    size_t count;
    std::string key;
    std::set<std::string> keys;
  };

  bool begin_value() {
    if (!frames_.empty() && frames_.back().array) {
      ++frames_.back().count;
    }
    return true;
  }
  bool begin_structure(bool array) {
    if (frames_.size() >= kDeepest) {
      throw InputError(source_ + "#" + pointer(),
                       fmt::format("nested deeper than {} levels", kDeepest));
    }
    begin_value();
    frames_.push_back({array, 0, {}, {}});
    return true;
  }
  bool end_structure() {
    frames_.pop_back();
    return true;
  }
  [[nodiscard]] std::string pointer() const {
    std::string out;
    for (const Frame& frame : frames_) {
      out += '/';
      out += frame.array ? std::to_string(frame.count == 0 ? 0 : frame.count - 1)
                         : escape_token(frame.key);
    }
    return out;
  }

  const std::string& source_;
  std::vector<Frame> frames_;
};

std::string kind_of(const json& value) {
  switch (value.type()) {
    case json::value_t::object:
      return "an object";
    case json::value_t::array:
      return "an array";
    case json::value_t::null:
      return "null";
    default:
      return value.dump(-1, ' ', false, json::error_handler_t::replace);
  }
}

}  // namespace

std::string escape_token(std::string_view key) {
  std::string out;
  for (const char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

std::string read_text_file(const std::filesystem::path& path) {
  return read_input(path,
                    {.most_bytes = kLargestFile, .pipes = true, .expected = "a small JSON file"});
}

nlohmann::json parse_json(std::string_view text, const std::string& source) {
  try {
    DuplicateKeys keys(source);
    (void)json::sax_parse(text, &keys);
    return json::parse(text);
  } catch (const json::parse_error& error) {
    throw InputError(source,
                     fmt::format("not valid JSON at byte {}: {}", error.byte, fault_of(error)));
  } catch (const json::exception& error) {
    throw InputError(source, fmt::format("not valid JSON: {}", fault_of(error)));
  }
}

std::string suggestion(std::string_view seen, std::span<const std::string> valid) {
  const std::string nearest = nearest_name(seen, valid);
  return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
}

std::string quoted_list(std::span<const std::string> names) {
  std::string out;
  for (const std::string& name : names) {
    out += fmt::format("{}'{}'", out.empty() ? "" : ", ", name);
  }
  return out;
}

void JsonNode::fail(const std::string& message) const {
  throw InputError(where(), message);
}

std::string JsonNode::where() const {
  return *source_ + "#" + (pointer_.empty() ? "/" : pointer_);
}

std::string JsonNode::shown() const {
  std::string text = kind_of(*value_);
  if (text.size() > 60) {
    text = text.substr(0, 57) + "...";
  }
  return text;
}

JsonNode JsonNode::child(const nlohmann::json& value, const std::string& token) const {
  JsonNode node(value, *source_);
  node.pointer_ = pointer_ + "/" + escape_token(token);
  return node;
}

void JsonNode::expect_object(std::string_view what) const {
  if (!value_->is_object()) {
    fail(fmt::format("expected {}, found {}", what, shown()));
  }
}

void JsonNode::allow_only(std::span<const std::string> keys) const {
  for (const auto& [key, value] : value_->items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      child(value, key)
          .fail(fmt::format("unknown key '{}'; expected one of {}{}", key, quoted_list(keys),
                            suggestion(key, keys)));
    }
  }
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  const auto found = value_->find(std::string(key));
  if (found == value_->end()) {
    return std::nullopt;
  }
  return child(*found, std::string(key));
}

JsonNode JsonNode::require(std::string_view key) const {
  auto found = find(key);
  if (!found) {
    child(*value_, std::string(key)).fail(fmt::format("key '{}' is missing", key));
  }
  return *found;
}

std::vector<std::string> JsonNode::keys() const {
  std::vector<std::string> out;
  for (const auto& [key, value] : value_->items()) {
    out.push_back(key);
  }
  return out;
}

std::vector<JsonNode> JsonNode::items(std::string_view what) const {
  if (!value_->is_array()) {
    fail(fmt::format("expected {}, found {}", what, shown()));
  }
  std::vector<JsonNode> out;
  out.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) {
    out.push_back(child((*value_)[i], std::to_string(i)));
  }
  return out;
}

std::vector<std::string> JsonNode::strings(std::string_view what) const {
  std::vector<std::string> out;
  for (const JsonNode& each : items(what)) {
    out.push_back(each.string());
  }
  return out;
}

bool JsonNode::boolean() const {
  if (!value_->is_boolean()) {
    fail(fmt::format("expected true or false, found {}", shown()));
  }
  return value_->get<bool>();
}

int64_t JsonNode::integer(int64_t low, int64_t high) const {
  const std::optional<int64_t> value = integer_of(*value_);
  if (!value || *value < low || *value > high) {
    if (low == std::numeric_limits<int64_t>::min() && high == std::numeric_limits<int64_t>::max()) {
      fail(fmt::format("expected an integer, found {}", shown()));
    }
    fail(fmt::format("expected an integer from {} to {}, found {}", low, high, shown()));
  }
  return *value;
}

double JsonNode::number() const {
  if (!value_->is_number() || !std::isfinite(value_->get<double>())) {
    fail(fmt::format("expected a number, found {}", shown()));
  }
  return value_->get<double>();
}

std::string JsonNode::string() const {
  if (!value_->is_string()) {
    fail(fmt::format("expected a string, found {}", shown()));
  }
  return value_->get<std::string>();
}

size_t JsonNode::one_of(std::span<const std::string> names) const {
  const std::string seen = value_->is_string() ? value_->get<std::string>() : "";
  const auto found =
      value_->is_string() ? std::find(names.begin(), names.end(), seen) : names.end();
  if (found == names.end()) {
    fail(fmt::format("expected one of {}, found {}{}", quoted_list(names), shown(),
                     suggestion(seen, names)));
  }
  return static_cast<size_t>(found - names.begin());
}

}  // namespace shardlens::plan
