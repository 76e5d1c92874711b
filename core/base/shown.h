#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace shardlens {

enum class LineEnds : uint8_t { kReplaced, kKept };

// `text` with "?" for whatever would change how a terminal shows the text after it: control
// characters (also those beyond ASCII), characters that turn the direction of text, line and
// paragraph separators, and bytes that are not UTF-8. For names of files and of events, which
// strangers may have chosen.
[[nodiscard]] std::string printable(std::string_view text, LineEnds ends = LineEnds::kReplaced);

// `text` with "\xNN" for each byte that is not UTF-8, for JSON.
[[nodiscard]] std::string escaped_bytes(std::string_view text);

// UTF-8 `text`, or its begin and end with "…" between if it has more than `most` code points, at
// least 3.
[[nodiscard]] std::string elided(std::string_view text, size_t most);

// Number of code points of UTF-8 `text`.
[[nodiscard]] size_t code_points(std::string_view text);

}  // namespace shardlens
