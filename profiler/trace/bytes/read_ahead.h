#pragma once

#include <memory>

#include "profiler/trace/bytes/byte_source.h"

namespace shardlens::trace {

// Reads `source` on a separate thread, at most kAheadBlocks blocks ahead. What `source` throws is
// thrown by read() after the bytes before it have been returned. The thread ends with the object.
// The caller's thread reads the first `from` bytes itself: inflating takes a fifth of the time of
// parsing, and for a shorter file a thread that waits for a core costs more than it saves. Of a
// compressed file of kAheadFromFile bytes, whose text is mostly ten times as long, it reads none.
inline constexpr size_t kAheadBlocks = 4, kAheadBlockBytes = size_t{1} << 18;
inline constexpr size_t kAheadFrom = size_t{64} << 20, kAheadFromFile = size_t{6} << 20;
[[nodiscard]] std::unique_ptr<ByteSource> read_ahead(std::unique_ptr<ByteSource> source,
                                                     size_t from = kAheadFrom);

}  // namespace shardlens::trace
