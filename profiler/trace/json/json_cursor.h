#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/trace/json/token_window.h"

namespace shardlens::trace {

// Thrown when the window ends within a value: the caller must advance the window and read the value
// again from its start. Not an error, and thrown at most once per window.
struct Incomplete {};

// A value as written. `text`: a string without its quotes; an object or array with its brackets.
struct JsonValue {
  char kind = 0;  // '"', '{', '[', '0' (a number), 't', 'f', 'n' (true, false, null), 'x' (NaN or
                  // Infinity, which Python writes)
  std::string_view text;
  [[nodiscard]] bool is_string() const { return kind == '"'; }
  [[nodiscard]] bool is_number() const { return kind == '0'; }
};

// Walks the tokens of a window and checks that they are valid JSON, also in values that it only
// skips. Texts that it returns are valid as long as the window's content.
//
// Errors   InputError with the byte at which something else was expected; Incomplete.
class JsonCursor {
 public:
  static constexpr int kMaxDepth = 1024;

  JsonCursor(const TokenWindow& window, std::string name)
      : window_(window), name_(std::move(name)) {}

  // Moves to token `at` of the window's present content.
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
  // The byte after the bracket that was taken last.
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
  // The text of a string between its quotes, as written. The closing quote is the last byte before
  // the next token that is not white space.
  std::string_view string(const char* expected) {
    take('"', expected);
    const char* const begin = text_ + at_[-1] + 1;
    const char* end = text_ + *at_ - 1;
    while (end > begin && *end != '"') {
      --end;
    }
    return {begin, static_cast<size_t>(end - begin)};
  }
  // Takes `"key":` and returns the key.
  std::string_view key() {
    const std::string_view key = string("a key in quotes");
    take(':', "':'");
    return key;
  }
  // To call after a value in an object or array: true if `close` ends it here, false if another
  // value follows.
  bool ends(char close) {
    if (take_if(',')) {
      return false;
    }
    take(close, close == '}' ? "',' or '}'" : "',' or ']'");
    return true;
  }
  // Writes into `to` instead of returning a value: a copy right after would wait for the separate
  // stores of its members.
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

  // The text of a string with its escape sequences resolved; half of a surrogate pair becomes
  // U+FFFD. `storage` receives the text if it has any.
  std::string_view unescaped(std::string_view written, std::string& storage) const;

  // Occurrences of NaN and Infinity, which are not valid JSON, since the last clear().
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
