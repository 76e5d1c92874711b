#pragma once

#include <string_view>

namespace shardlens::trace {

// An overhead event for a flush of CUPTI's buffers that Shardlens asked for. Other events of
// recording are named as in Kineto ("Buffer Flush", "Instrumentation", …).
inline constexpr std::string_view kOwnFlush = "Buffer Flush (requested by Shardlens)";

}  // namespace shardlens::trace
