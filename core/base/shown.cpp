#include "core/base/printable.h"

#include <algorithm>

#include <fmt/format.h>

namespace shardlens {
namespace {

bool continues(char c) {
  return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
}

struct CodePoint {
  char32_t value = 0;
  size_t bytes = 1;
  bool valid = false;
};

CodePoint first_of(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  if (lead < 0x80) {
    return {lead, 1, true};
  }
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) {
    return {};
  }
  char32_t value = lead & (0x7FU >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if (!continues(text[i])) {
      return {};
    }
    value = value << 6U | (static_cast<unsigned char>(text[i]) & 0x3FU);
  }
  const char32_t least = bytes == 4 ? 0x10000 : bytes == 3 ? 0x800 : 0x80;
  const bool surrogate = value >= 0xD800 && value < 0xE000;
  return {value, bytes, value >= least && value <= 0x10FFFF && !surrogate};
}

bool changes_display(char32_t c) {
  const auto within = [c](char32_t from, char32_t to) { return from <= c && c <= to; };
  return c < 0x20 || within(0x7F, 0x9F) || c == 0x061C || within(0x200E, 0x200F) ||
         within(0x2028, 0x202E) || within(0x2066, 0x2069);
}

// Where code point `number` of `text` begins.
size_t offset_of(std::string_view text, size_t number) {
  size_t at = 0;
  for (; at < text.size(); ++at) {
    if (!continues(text[at]) && number-- == 0) {
      break;
    }
  }
  return at;
}

}  // namespace

std::string printable(std::string_view text, LineEnds ends) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const CodePoint next = first_of(text);
    const bool kept = next.value == '\n' && ends == LineEnds::kKept;
    const size_t bytes = next.valid ? next.bytes : 1;
    if (next.valid && (kept || !changes_display(next.value))) {
      out += text.substr(0, bytes);
    } else {
      out += '?';
    }
    text.remove_prefix(bytes);
  }
  return out;
}

std::string escaped_bytes(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const CodePoint next = first_of(text);
    if (next.valid) {
      out += text.substr(0, next.bytes);
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
    }
    text.remove_prefix(next.valid ? next.bytes : 1);
  }
  return out;
}

std::string elided(std::string_view text, size_t most) {
  const size_t points = code_points(text);
  if (points <= most) {
    return std::string(text);
  }
  const size_t end = most / 2, begin = most - 1 - end;
  std::string out(text.substr(0, offset_of(text, begin)));
  out += "…";
  out += text.substr(offset_of(text, points - end));
  return out;
}

size_t code_points(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !continues(c); }));
}

}  // namespace shardlens
