#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/trace/json/token_window.h"

namespace shardlens::trace {

// Thrown where the window ends within a value: advance it and begin the value again. Not an error,
// and at most once per window.
struct Incomplete {};

// A value as written: `text` without the quotes of a string; of an object or array all of it, with
// its brackets.
struct JsonValue {
  char kind = 0;  // '"', '{', '[', '0' (a number), 't', 'f', 'n' (true, false, null), 'x' (NaN or
                  // Infinity, which Python writes)
  std::string_view text;
  [[nodiscard]] bool is_string() const { return kind == '"'; }
  [[nodiscard]] bool is_number() const { return kind == '0'; }
};

// Walks the tokens of a window and checks that they are JSON, also where it only skips them. Texts
// that it returns live as long as the window.
//
// Errors   InputError with the byte where something else was expected; Incomplete.
class JsonCursor {
 public:
  static constexpr int kMaxDepth = 1024;

  JsonCursor(const TokenWindow& window, std::string name)
      : window_(window), name_(std::move(name)) {}

  // To token `at` of the window's present content.
  void place(size_t at) {
    text_ = window_.text();
    at_ = window_.tokens() + at;
  }
  [[nodiscard]] size_t token() const { return static_cast<size_t>(at_ - window_.tokens()); }
  [[nodiscard]] uint64_t byte() const { return window_.offset() + *at_; }
  [[nodiscard]] uint64_t byte_of(const char* place) const {
    return window_.offset() + static_cast<uint64_t>(place - text_);
  }

  [[nodiscard]] const char* here() const { return text_ + *at_; }
  // Behind the bracket that was taken last.
  [[nodiscard]] const char* behind_last() const { return text_ + at_[-1] + 1; }
  [[nodiscard]] char peek() const { return text_[*at_]; }
  void take(char c, const char* expected) {
    if (peek() != c) {
      unexpected(expected);
    }
    ++at_;
  }
  bool take_if(char c) {
    const bool is = peek() == c;
    at_ += is ? 1 : 0;
    return is;
  }
  // Text of a string between its quotes, as written. The closing quote is the last byte before the
  // next token but white space.
  std::string_view string(const char* expected) {
    take('"', expected);
    const char* const begin = text_ + at_[-1] + 1;
    const char* end = text_ + *at_ - 1;
    while (end > begin && *end != '"') {
      --end;
    }
    return {begin, static_cast<size_t>(end - begin)};
  }
  // "key":
  std::string_view key() {
    const std::string_view key = string("a key in quotes");
    take(':', "':'");
    return key;
  }
  // Behind a value in an object or array that `close` ends: true at the end, false where another
  // one follows.
  bool ends(char close) {
    if (take_if(',')) {
      return false;
    }
    take(close, close == '}' ? "',' or '}'" : "',' or ']'");
    return true;
  }
  // Into `to`, where it stays: a copy right behind would wait for the parts to be written.
  void value(JsonValue& to) {
    const char* const begin = text_ + *at_;
    switch (*begin) {
      case '"':
        to.kind = '"';
        to.text = string("a string");
        return;
      case '{':
      case '[':
        skip(0);
        to.kind = *begin;
        to.text = {begin, static_cast<size_t>(text_ + at_[-1] + 1 - begin)};
        return;
      default:
        scalar(to);
    }
  }
  JsonValue value() {
    JsonValue read;
    value(read);
    return read;
  }

  // Text of a string with its escapes resolved; half of a surrogate pair becomes U+FFFD. `storage`
  // holds it if there are any.
  std::string_view unescaped(std::string_view written, std::string& storage) const;

  // NaN and Infinity, found since the last clear: they are not JSON.
  [[nodiscard]] std::vector<std::string_view>& not_json() { return not_json_; }

  [[noreturn]] void fail(uint64_t byte, const std::string& message) const;

 private:
  void skip(int depth);
  void scalar(JsonValue& to);
  [[noreturn]] void unexpected(const char* expected) const;

  const TokenWindow& window_;
  std::string name_;
  const char* text_ = nullptr;
  const uint32_t* at_ = nullptr;
  std::vector<std::string_view> not_json_;
};

}  // namespace shardlens::trace
