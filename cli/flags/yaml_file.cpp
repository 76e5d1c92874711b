#include "cli/flags/yaml_file.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>

#include <fmt/format.h>
#include <yaml.h>

#include "core/base/error.h"

namespace shardlens::cli {
namespace {

using nlohmann::json;

constexpr int kDeepest = 64;

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  for (const std::string_view each : words) {
    if (word == each) {
      return true;
    }
  }
  return false;
}

// A word without quotes. Source: PyYAML 6, resolver.py.
json plain(std::string_view word) {
  if (is_one_of(word, {"", "~", "null", "Null", "NULL"})) {
    return nullptr;
  }
  if (is_one_of(word, {"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})) {
    return true;
  }
  if (is_one_of(word, {"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"})) {
    return false;
  }
  std::string digits;
  for (const char c : word) {
    if (c != '_') {
      digits += c;
    }
  }
  const char* begin = digits.data() + (digits.starts_with('+') ? 1 : 0);
  const char* const end = digits.data() + digits.size();
  int64_t number = 0;
  if (std::from_chars(begin, end, number).ptr == end && begin != end) {
    return number;
  }
  // 1e8 is a word in YAML 1.1, which wants a point.
  double value = 0;
  if (digits.find('.') != std::string::npos && std::from_chars(begin, end, value).ptr == end &&
      std::isfinite(value)) {
    return value;
  }
  return std::string(word);
}

class YamlReader {
 public:
  YamlReader(std::string_view text, const std::string& source) : source_(source) {
    if (yaml_parser_initialize(&parser_) == 0) {
      throw RuntimeFault("cannot start libyaml");
    }
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()),
                                 text.size());
  }
  ~YamlReader() {
    yaml_event_delete(&event_);
    yaml_parser_delete(&parser_);
  }
  YamlReader(const YamlReader&) = delete;
  YamlReader& operator=(const YamlReader&) = delete;
  YamlReader(YamlReader&&) = delete;
  YamlReader& operator=(YamlReader&&) = delete;

  json document() {
    next();  // the stream begins
    next();
    if (event_.type == YAML_STREAM_END_EVENT) {
      return nullptr;
    }
    next();
    json out = value(0);
    next();  // the document ends
    next();
    if (event_.type != YAML_STREAM_END_EVENT) {
      fail("expected one document");
    }
    return out;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(source_, fmt::format("line {}: {}", event_.start_mark.line + 1, what));
  }

  void next() {
    yaml_event_delete(&event_);
    if (yaml_parser_parse(&parser_, &event_) == 0) {
      throw InputError(source_,
                       fmt::format("not valid YAML at line {}: {}", parser_.problem_mark.line + 1,
                                   parser_.problem != nullptr ? parser_.problem : ""));
    }
  }

  // The value that begins at the current event.
  json value(int depth) {
    if (depth > kDeepest) {
      fail(fmt::format("nested deeper than {} levels", kDeepest));
    }
    switch (event_.type) {
      case YAML_SCALAR_EVENT:
        return scalar();
      case YAML_SEQUENCE_START_EVENT: {
        refuse_names(event_.data.sequence_start.anchor, event_.data.sequence_start.tag);
        json out = json::array();
        for (next(); event_.type != YAML_SEQUENCE_END_EVENT; next()) {
          out.push_back(value(depth + 1));
        }
        return out;
      }
      case YAML_MAPPING_START_EVENT: {
        refuse_names(event_.data.mapping_start.anchor, event_.data.mapping_start.tag);
        return mapping(depth);
      }
      default:
        fail("anchors and aliases are not read; write the value out");
    }
  }

  json mapping(int depth) {
    json out = json::object();
    for (next(); event_.type != YAML_MAPPING_END_EVENT; next()) {
      if (event_.type != YAML_SCALAR_EVENT) {
        fail("expected a word as a key");
      }
      const std::string key = text();
      if (out.contains(key)) {
        fail(fmt::format("key '{}' is given twice", key));
      }
      next();
      out[key] = value(depth + 1);
    }
    return out;
  }

  void refuse_names(const yaml_char_t* anchor, const yaml_char_t* tag) const {
    if (anchor != nullptr || tag != nullptr) {
      fail("anchors and tags are not read; write the value out");
    }
  }

  [[nodiscard]] std::string text() const {
    return {reinterpret_cast<const char*>(event_.data.scalar.value), event_.data.scalar.length};
  }

  json scalar() const {
    refuse_names(event_.data.scalar.anchor, event_.data.scalar.tag);
    return event_.data.scalar.style == YAML_PLAIN_SCALAR_STYLE ? plain(text()) : json(text());
  }

  const std::string& source_;
  yaml_parser_t parser_{};
  yaml_event_t event_{};
};

}  // namespace

json parse_yaml(std::string_view text, const std::string& source) {
  return YamlReader(text, source).document();
}

}  // namespace shardlens::cli
