#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/flags/run_options.h"

namespace shardlens::cli {

// Parses the flags of a capture for a command that makes the capture itself and so chooses --out.
// Messages begin with `name`.
// Errors  UsageError for no flags, for flags that capture does not accept, and for --out.
[[nodiscard]] RunOptions capture_flags(std::vector<std::string> words, std::string_view name);

}  // namespace shardlens::cli
