#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace shardlens::trace {

// The decimal number `text` ("-12.345", "1.5e3") times 10^`scale`, rounded to the nearest integer
// (half away from zero); never by way of a double, which has no room for the nanoseconds of an
// epoch. nullopt if it is no number or does not fit.
[[nodiscard]] std::optional<int64_t> scaled_decimal(std::string_view text, int scale);

// Microseconds as written in a trace → nanoseconds.
[[nodiscard]] inline std::optional<int64_t> nanoseconds_of_microseconds(std::string_view text) {
  return scaled_decimal(text, 3);
}

}  // namespace shardlens::trace
