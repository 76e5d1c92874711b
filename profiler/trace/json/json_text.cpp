#include "profiler/trace/json/json_text.h"

#include <fmt/format.h>
#include <simdjson.h>

namespace shardlens::trace {

void append_quoted(std::string& out, std::string_view text) {
  const bool valid = simdjson::validate_utf8(text.data(), text.size());
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", byte);
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte >= 0x80 && !valid) {
      out += "\\ufffd";
    } else {
      out += c;
    }
  }
  out += '"';
}

void append_integer(std::string& out, int64_t value) {
  const fmt::format_int text(value);
  out.append(text.data(), text.size());
}

void append_microseconds(std::string& out, Nanoseconds value) {
  if (value < 0) {
    out += '-';
  }
  // Unsigned, because the smallest int64 has no positive counterpart.
  const uint64_t magnitude =
      value < 0 ? 0U - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  const fmt::format_int whole(magnitude / 1000);
  out.append(whole.data(), whole.size());
  const auto rest = static_cast<unsigned>(magnitude % 1000);
  out += '.';
  out += static_cast<char>('0' + rest / 100);
  out += static_cast<char>('0' + rest / 10 % 10);
  out += static_cast<char>('0' + rest % 10);
}

}  // namespace shardlens::trace
