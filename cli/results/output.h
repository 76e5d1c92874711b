#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/units.h"
#include "profiler/report/table.h"

namespace shardlens::cli {

// Data for the user or the next program in a pipe. Errors: RuntimeFault when stdout does not take
// it (a full disk).
void write_stdout(std::string_view text);
void flush_stdout();

// Whether tables for stdout carry escape sequences: on a terminal, unless NO_COLOR is set.
[[nodiscard]] report::Style style_of_stdout();

// `text` in bold where stdout is a terminal and NO_COLOR is unset; as it is elsewhere.
[[nodiscard]] std::string bold(std::string_view text);

// "1,234,567"
[[nodiscard]] std::string format_count(int64_t count);

}  // namespace shardlens::cli
