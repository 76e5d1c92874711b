#pragma once

#include <memory>

#include "profiler/trace/bytes/byte_source.h"

namespace shardlens::trace {

// Reads `source` on a thread of its own, at most kAheadBlocks blocks ahead; what it throws is
// thrown by read() when the bytes before it have been handed out. The thread ends with the object.
// It starts behind the first `from` bytes, which the caller's thread reads: inflating takes a fifth
// of the time of parsing, and for less than that a thread that waits for a core costs more.
inline constexpr size_t kAheadBlocks = 4, kAheadBlockBytes = size_t{1} << 18;
inline constexpr size_t kAheadFrom = size_t{64} << 20;
[[nodiscard]] std::unique_ptr<ByteSource> read_ahead(std::unique_ptr<ByteSource> source,
                                                     size_t from = kAheadFrom);

}  // namespace shardlens::trace
