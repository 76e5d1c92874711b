#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/units.h"

namespace shardlens::trace {

// Appends `text` as a JSON string. Bytes that are not valid UTF-8 become U+FFFD, so that the
// document stays valid.
void append_quoted(std::string& out, std::string_view text);
void append_integer(std::string& out, int64_t value);
// Nanoseconds as microseconds with exactly three decimals: 1234567 → 1234.567.
void append_microseconds(std::string& out, Nanoseconds value);

}  // namespace shardlens::trace
