#pragma once

#include <memory>

#include "profiler/trace/byte_source.h"

namespace shardlens::trace {

// Reads `source` on a thread of its own, at most kAheadBlocks blocks ahead; what it throws is
// thrown by read() when the bytes before it have been handed out. The thread ends with the object.
inline constexpr size_t kAheadBlocks = 4, kAheadBlockBytes = size_t{1} << 20;
[[nodiscard]] std::unique_ptr<ByteSource> read_ahead(std::unique_ptr<ByteSource> source);

}  // namespace shardlens::trace
