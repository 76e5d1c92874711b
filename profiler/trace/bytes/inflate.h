#pragma once

#include <memory>
#include <string>

#include "profiler/trace/bytes/byte_source.h"

// Inflates a compressed file while it is read; used by open_source().
namespace shardlens::trace {

// `name`: for messages.
[[nodiscard]] std::unique_ptr<ByteSource> inflate_gzip(std::unique_ptr<ByteSource> compressed,
                                                       std::string name);
[[nodiscard]] std::unique_ptr<ByteSource> inflate_zstd(std::unique_ptr<ByteSource> compressed,
                                                       std::string name);

}  // namespace shardlens::trace
