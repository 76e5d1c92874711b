#include "profiler/trace/bytes/compression.h"

#include <algorithm>
#include <utility>

#include <isa-l/igzip_lib.h>

#include "core/base/error.h"

namespace shardlens::trace {
namespace {

constexpr size_t kCompressedChunk = size_t{1} << 18;

}  // namespace

GzipEncoder::GzipEncoder(TextOutput out)
    : out_(std::move(out)),
      stream_(std::make_unique<isal_zstream>()),
      work_(ISAL_DEF_LVL1_DEFAULT),
      chunk_(kCompressedChunk) {
  isal_deflate_init(stream_.get());
  stream_->level = 1;
  stream_->level_buf = work_.data();
  stream_->level_buf_size = static_cast<uint32_t>(work_.size());
  stream_->gzip_flag = IGZIP_GZIP;
  stream_->flush = NO_FLUSH;
}

GzipEncoder::~GzipEncoder() = default;

void GzipEncoder::write(std::string_view text) {
  while (!text.empty()) {
    const size_t piece = std::min(kCompressedChunk, text.size());
    deflate(text.substr(0, piece), false);
    text.remove_prefix(piece);
  }
}

void GzipEncoder::finish() {
  deflate({}, true);
}

void GzipEncoder::deflate(std::string_view text, bool last) {
  // isa-l's interface is not const, but it only reads the input.
  stream_->next_in = reinterpret_cast<uint8_t*>(const_cast<char*>(text.data()));  // NOLINT
  stream_->avail_in = static_cast<uint32_t>(text.size());
  stream_->end_of_stream = last ? 1 : 0;
  do {
    stream_->next_out = chunk_.data();
    stream_->avail_out = static_cast<uint32_t>(chunk_.size());
    const int rc = isal_deflate(stream_.get());
    SHARDLENS_CHECK(rc == COMP_OK, "isa-l could not compress");
    out_({reinterpret_cast<const char*>(chunk_.data()), chunk_.size() - stream_->avail_out});
  } while (stream_->avail_in > 0 || stream_->avail_out == 0 ||
           (last && stream_->internal_state.state != ZSTATE_END));
}

std::string gzip(std::string_view content) {
  std::string out;
  GzipEncoder encoder([&out](std::string_view bytes) { out += bytes; });
  encoder.write(content);
  encoder.finish();
  return out;
}

}  // namespace shardlens::trace
