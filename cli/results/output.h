#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/shown.h"
#include "profiler/report/table.h"

namespace shardlens::cli {

// Tables for stdout fit its width, and have escape sequences on a terminal, unless NO_COLOR is set.
[[nodiscard]] report::Style style_of_stdout();

// Columns of the terminal that stdout is; 100 if it is none.
[[nodiscard]] size_t width_of_stdout();

// `text` in bold if stdout is a terminal and NO_COLOR is unset; otherwise unchanged.
[[nodiscard]] Shown bold(const Shown& text);
[[nodiscard]] Shown bold(Literal text);

// "1,234,567"
[[nodiscard]] std::string format_count(int64_t count);

}  // namespace shardlens::cli
