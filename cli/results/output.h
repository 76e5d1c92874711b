#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/units.h"
#include "profiler/report/table.h"

namespace shardlens::cli {

// Writes data for the user or the next program in a pipe. Errors: RuntimeFault if writing to stdout
// fails (a full disk).
void write_stdout(std::string_view text);
void flush_stdout();

// Whether tables for stdout contain escape sequences: on a terminal, unless NO_COLOR is set.
[[nodiscard]] report::Style style_of_stdout();

// `text` in bold if stdout is a terminal and NO_COLOR is unset; otherwise unchanged.
[[nodiscard]] std::string bold(std::string_view text);

// "1,234,567"
[[nodiscard]] std::string format_count(int64_t count);

}  // namespace shardlens::cli
