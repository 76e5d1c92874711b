#pragma once

#include <string>

namespace shardlens::cli {

// For CLI::Option::transform(): replaces "80GiB" in `text` by the number of bytes. Returns why it
// is none, or "": a number without a unit is refused, since 80 is more often GiB than bytes.
[[nodiscard]] std::string size_to_bytes(std::string& text);

}  // namespace shardlens::cli
