#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace shardlens::trace {

[[nodiscard]] constexpr bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// The decimal number `text` ("-12.345", "1.5e3") times 10^`scale`, rounded to the nearest integer
// (half away from zero). It is never converted to a double, which cannot represent the nanoseconds
// of a time since the epoch. nullopt if `text` is not a number or the result does not fit.
[[nodiscard]] std::optional<int64_t> scaled_decimal(std::string_view text, int scale);

// Microseconds as written in a trace → nanoseconds.
[[nodiscard]] inline std::optional<int64_t> nanoseconds_of_microseconds(std::string_view text) {
  // Fast path for what profilers write: at most 15 digits and at most three decimals. Everything
  // else is left to scaled_decimal().
  constexpr size_t kSafeDigits = 15;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto at_digit = [&] { return at != end && is_digit(*at); };
  int64_t value = 0;
  for (; at_digit(); ++at) {
    value = value * 10 + (*at - '0');
    if (at - text.data() >= static_cast<ptrdiff_t>(kSafeDigits)) {
      return scaled_decimal(text, 3);
    }
  }
  if (at == text.data()) {
    return scaled_decimal(text, 3);
  }
  int64_t unit = 1000;
  if (at != end && *at == '.' && end - at > 1) {
    for (++at; at_digit() && unit > 1; ++at) {
      value = value * 10 + (*at - '0');
      unit /= 10;
    }
  }
  return at == end ? std::optional(value * unit) : scaled_decimal(text, 3);
}

// Reads an integer; 1.0 and 1e3 are integers too.
[[nodiscard]] inline std::optional<int64_t> integer_of(std::string_view text) {
  constexpr size_t kSafeDigits = 18;
  if (text.empty() || text.size() > kSafeDigits) {
    return scaled_decimal(text, 0);
  }
  int64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') {
      return scaled_decimal(text, 0);
    }
    value = value * 10 + (c - '0');
  }
  return value;
}

}  // namespace shardlens::trace
