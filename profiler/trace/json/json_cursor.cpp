#include "profiler/trace/json/json_cursor.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "core/base/error.h"
#include "profiler/trace/json/decimal.h"

namespace shardlens::trace {
namespace {

bool ends_scalar(char c) {
  return c == ',' || c == '}' || c == ']' || c == ' ' || c == '\n' || c == '\r' || c == '\t' ||
         c == ':' || c == '\0';
}

// End of the number that begins at `at`, or nullptr.
const char* number_end(const char* at) {
  at += *at == '-' ? 1 : 0;
  const char* const whole = at;
  while (is_digit(*at)) {
    ++at;
  }
  if (at == whole || (*whole == '0' && at != whole + 1)) {
    return nullptr;
  }
  if (*at == '.') {
    const char* const fraction = ++at;
    while (is_digit(*at)) {
      ++at;
    }
    if (at == fraction) {
      return nullptr;
    }
  }
  if (*at == 'e' || *at == 'E') {
    ++at;
    at += *at == '-' || *at == '+' ? 1 : 0;
    const char* const exponent = at;
    while (is_digit(*at)) {
      ++at;
    }
    if (at == exponent) {
      return nullptr;
    }
  }
  return at;
}

void append_utf8(std::string& out, uint32_t code) {
  const auto byte = [&](uint32_t b) { out += static_cast<char>(b); };
  if (code < 0x80) {
    byte(code);
  } else if (code < 0x800) {
    byte(0xC0 | code >> 6);
    byte(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    byte(0xE0 | code >> 12);
    byte(0x80 | (code >> 6 & 0x3F));
    byte(0x80 | (code & 0x3F));
  } else {
    byte(0xF0 | code >> 18);
    byte(0x80 | (code >> 12 & 0x3F));
    byte(0x80 | (code >> 6 & 0x3F));
    byte(0x80 | (code & 0x3F));
  }
}

// Four hexadecimal digits, or -1.
int32_t code_unit(std::string_view digits) {
  if (digits.size() < 4) {
    return -1;
  }
  int32_t value = 0;
  for (const char c : digits.substr(0, 4)) {
    const char lower = static_cast<char>(c | 0x20);
    if (!is_digit(c) && (lower < 'a' || lower > 'f')) {
      return -1;
    }
    value = value * 16 + (is_digit(c) ? c - '0' : lower - 'a' + 10);
  }
  return value;
}

// Appends the character that "\uXXXX…" at the beginning of `text` represents. Returns the length of
// the escape sequence, or 0 if it is invalid.
size_t append_code(std::string& out, std::string_view text) {
  constexpr uint32_t kReplacement = 0xFFFD;
  const int32_t first = code_unit(text.substr(2));
  if (first < 0) {
    return 0;
  }
  if (first < 0xD800 || first > 0xDFFF) {
    append_utf8(out, static_cast<uint32_t>(first));
    return 6;
  }
  const bool pair = first < 0xDC00 && text.size() >= 12 && text[6] == '\\' && text[7] == 'u';
  const int32_t second = pair ? code_unit(text.substr(8)) : -1;
  if (second < 0xDC00 || second > 0xDFFF) {
    append_utf8(out, kReplacement);
    return 6;
  }
  append_utf8(out, 0x10000U + ((static_cast<uint32_t>(first) - 0xD800U) << 10) +
                       (static_cast<uint32_t>(second) - 0xDC00U));
  return 12;
}

// The first characters of a text, for a message.
std::string shown(std::string_view text) {
  constexpr size_t kMost = 20;
  std::string out;
  for (const char c : text.substr(0, kMost)) {
    if (ends_scalar(c) && !out.empty()) {
      break;
    }
    out += c >= 0x20 && c < 0x7f ? c : '?';
  }
  return out;
}

}  // namespace

void JsonCursor::fail(uint64_t byte, const std::string& message) const {
  throw InputError(fmt::format("{} at byte {}", name_, byte), message);
}

void JsonCursor::unexpected(const char* expected) const {
  // The last token of a window may be a number or word that continues in the next window.
  if (!window_.last() && token() + 1 >= window_.count()) {
    throw Incomplete();
  }
  if (token() < window_.count()) {
    const std::string_view rest(text_ + *at_, window_.end() - byte());
    fail(byte(),
         fmt::format("not the JSON of a trace: expected {}, not '{}'", expected, shown(rest)));
  }
  fail(window_.end(), fmt::format("the JSON ends where {} was expected: the file is cut off, or a "
                                  "bracket is missing",
                                  expected));
}

void JsonCursor::skip(int depth) {
  if (depth >= kMaxDepth) {
    fail(byte(), fmt::format("nested more than {} deep", kMaxDepth));
  }
  const char open = peek();
  const char close = open == '{' ? '}' : ']';
  ++at_;
  if (take_if(close)) {
    return;
  }
  JsonValue ignored;
  do {
    if (open == '{') {
      take('"', "a key in quotes");
      take(':', "':'");
    }
    switch (peek()) {
      case '"':
        ++at_;
        break;
      case '{':
      case '[':
        skip(depth + 1);
        break;
      default:
        scalar(ignored);
        break;
    }
  } while (!ends(close));
}

void JsonCursor::scalar(JsonValue& to) {
  const auto take = [&](char kind, std::string_view text) {
    ++at_;
    to.kind = kind;
    to.text = text;
  };
  const char* const begin = text_ + *at_;
  if (const char* const end = number_end(begin); end != nullptr && ends_scalar(*end)) {
    return take('0', {begin, static_cast<size_t>(end - begin)});
  }
  const std::string_view rest(begin, window_.end() - byte());
  for (const std::string_view word : {"true", "false", "null"}) {
    if (rest.starts_with(word) && ends_scalar(begin[word.size()])) {
      return take(word.front(), rest.substr(0, word.size()));
    }
  }
  for (const std::string_view word :
       {"NaN", "nan", "-nan", "Infinity", "-Infinity", "inf", "-inf"}) {
    if (rest.starts_with(word) && ends_scalar(begin[word.size()])) {
      not_json_.push_back(rest.substr(0, word.size()));
      return take('x', rest.substr(0, word.size()));
    }
  }
  unexpected("a value");
}

std::string_view JsonCursor::unescaped(std::string_view written, std::string& storage) const {
  size_t at = written.find('\\');
  if (at == std::string_view::npos) {
    return written;
  }
  storage.assign(written.substr(0, at));
  while (at < written.size()) {
    if (written[at] != '\\') {
      storage += written[at++];
      continue;
    }
    constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    const char letter = written[at + 1];  // a string does not end in one backslash
    if (const size_t known = kLetters.find(letter); known != std::string_view::npos) {
      storage += kMeanings[known];
      at += 2;
      continue;
    }
    const size_t length = letter == 'u' ? append_code(storage, written.substr(at)) : 0;
    if (length == 0) {
      fail(byte_of(written.data() + at), "not JSON: invalid escape sequence");
    }
    at += length;
  }
  return storage;
}

}  // namespace shardlens::trace
