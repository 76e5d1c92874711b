#include "core/checkpoint/checksum.h"

#include <isa-l/crc.h>

namespace shardlens::checkpoint {

uint32_t crc32(std::span<const std::byte> bytes, uint32_t before) {
  return bytes.empty()
             ? before
             : crc32_gzip_refl(before, reinterpret_cast<const unsigned char*>(bytes.data()),
                               bytes.size());
}

}  // namespace shardlens::checkpoint
