#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace shardlens::checkpoint {

// CRC-32 as in gzip and Python's zlib.crc32. `before`: the checksum of the bytes before these.
[[nodiscard]] uint32_t crc32(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace shardlens::checkpoint
