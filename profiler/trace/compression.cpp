#include "profiler/trace/compression.h"

#include <algorithm>
#include <vector>

#include <isa-l/igzip_lib.h>

#include "core/base/error.h"

namespace shardlens::trace {
namespace {

constexpr size_t kChunk = size_t{1} << 20;

}  // namespace

std::string gzip(std::string_view content) {
  isal_zstream stream{};  // isal_deflate_init leaves next_in and avail_in as they are
  isal_deflate_init(&stream);
  std::vector<uint8_t> work(ISAL_DEF_LVL1_DEFAULT);
  stream.level = 1;
  stream.level_buf = work.data();
  stream.level_buf_size = static_cast<uint32_t>(work.size());
  stream.gzip_flag = IGZIP_GZIP;
  stream.flush = NO_FLUSH;
  std::string out;
  std::vector<uint8_t> chunk(kChunk);
  size_t taken = 0;
  do {
    if (stream.avail_in == 0 && taken < content.size()) {
      const size_t next = std::min(kChunk, content.size() - taken);
      // isa-l's interface is not const, it only reads.
      stream.next_in =
          reinterpret_cast<uint8_t*>(const_cast<char*>(content.data() + taken));  // NOLINT
      stream.avail_in = static_cast<uint32_t>(next);
      taken += next;
    }
    stream.end_of_stream = taken == content.size() ? 1 : 0;
    stream.next_out = chunk.data();
    stream.avail_out = static_cast<uint32_t>(chunk.size());
    const int rc = isal_deflate(&stream);
    SHARDLENS_CHECK(rc == COMP_OK, "isa-l could not compress");
    out.append(reinterpret_cast<const char*>(chunk.data()), chunk.size() - stream.avail_out);
  } while (stream.internal_state.state != ZSTATE_END);
  return out;
}

}  // namespace shardlens::trace
