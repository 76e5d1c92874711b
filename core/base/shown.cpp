#include "core/base/shown.h"

#include <algorithm>
#include <iterator>

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

struct Range {
  char32_t first, last;
};

// Unicode 15.1: Cc, Cf, Zl, Zp, and what else is Default_Ignorable_Code_Point except the variation
// selectors of emoji (U+FE00 to U+FE0F).
constexpr Range kInvisible[] = {
    {0x0, 0x1F},        {0x7F, 0x9F},       {0xAD, 0xAD},       {0x34F, 0x34F},
    {0x600, 0x605},     {0x61C, 0x61C},     {0x6DD, 0x6DD},     {0x70F, 0x70F},
    {0x890, 0x891},     {0x8E2, 0x8E2},     {0x115F, 0x1160},   {0x17B4, 0x17B5},
    {0x180B, 0x180F},   {0x200B, 0x200F},   {0x2028, 0x202E},   {0x2060, 0x206F},
    {0x3164, 0x3164},   {0xFEFF, 0xFEFF},   {0xFFA0, 0xFFA0},   {0xFFF0, 0xFFFB},
    {0xFFFE, 0xFFFF},   {0x110BD, 0x110BD}, {0x110CD, 0x110CD}, {0x13430, 0x1343F},
    {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A}, {0xE0000, 0xE0FFF},
};

bool invisible(char32_t c) {
  const auto* found =
      std::upper_bound(std::begin(kInvisible), std::end(kInvisible), c,
                       [](char32_t value, Range range) { return value < range.first; });
  return found != std::begin(kInvisible) && c <= std::prev(found)->last;
}

// A runner removes all of these from the front of a line.
bool space(char32_t c) {
  return c == ' ' || c == 0xA0 || c == 0x1680 || (0x2000 <= c && c <= 0x200A) || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

// "#vso[", "#[" or "#teamcity[": the end of what begins a runner's command.
bool begins_command(std::string_view text) {
  if (!text.starts_with('#')) {
    return false;
  }
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto* end = std::find_if_not(text.begin() + 1, text.end(), letter);
  return end != text.end() && *end == '[';
}

std::string escape_of(char32_t c) {
  switch (c) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return c < 0x80 ? fmt::format("\\x{:02x}", static_cast<uint32_t>(c))
                      : fmt::format("\\u{{{:x}}}", static_cast<uint32_t>(c));
  }
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

std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool in_front = true;  // only spaces so far
  while (!text.empty()) {
    const CodePoint next = first_of(text);
    if (!next.valid) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
    } else if (invisible(next.value) || (in_front && next.value == ':') || begins_command(text)) {
      out += escape_of(next.value);
    } else {
      out += text.substr(0, next.bytes);
    }
    in_front = in_front && next.valid && space(next.value);
    text.remove_prefix(next.valid ? next.bytes : 1);
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
