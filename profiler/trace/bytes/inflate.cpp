#include "profiler/trace/bytes/inflate.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <isa-l/igzip_lib.h>
#include <zstd.h>

#include "core/base/error.h"

namespace shardlens::trace {
namespace {

constexpr size_t kInflatedChunk = size_t{1} << 18;

// Chunks of the compressed file, and the position in it for messages.
class Compressed {
 public:
  Compressed(std::unique_ptr<ByteSource> source, std::string name)
      : source_(std::move(source)), name_(std::move(name)), chunk_(kInflatedChunk) {}

  // False at the end.
  bool next() {
    size_ = source_->read(chunk_.data(), chunk_.size());
    position_ += size_;
    return size_ != 0;
  }
  [[nodiscard]] char* data() { return chunk_.data(); }
  [[nodiscard]] size_t size() const { return size_; }

  // `unread`: bytes at the end of the chunk that the decoder has not consumed.
  [[noreturn]] void fail(size_t unread, const std::string& message) const {
    throw InputError(fmt::format("{} at byte {} of the compressed file", name_, position_ - unread),
                     message);
  }

 private:
  std::unique_ptr<ByteSource> source_;
  std::string name_;
  std::vector<char> chunk_;
  size_t size_ = 0, position_ = 0;
};

class GzipSource final : public ByteSource {
 public:
  GzipSource(std::unique_ptr<ByteSource> source, std::string name)
      : in_(std::move(source), std::move(name)) {
    start_member();
  }

  size_t read(char* out, size_t size) override {
    state_.next_out = reinterpret_cast<uint8_t*>(out);
    const auto offered = static_cast<uint32_t>(std::min<size_t>(size, size_t{1} << 30));
    state_.avail_out = offered;
    while (state_.avail_out == offered) {
      if (state_.block_state == ISAL_BLOCK_FINISH && !next_member()) {
        return 0;
      }
      // With no input left, the decoder may still contain output of a match that did not fit
      // before.
      if (state_.avail_in == 0 && !holds_output_) {
        if (!in_.next()) {
          in_.fail(0, "the gzip data ends before its end mark: the file is cut off");
        }
        state_.next_in = reinterpret_cast<uint8_t*>(in_.data());
        state_.avail_in = static_cast<uint32_t>(in_.size());
      }
      const int rc = isal_inflate(&state_);
      if (rc != ISAL_DECOMP_OK && rc != ISAL_END_INPUT && rc != ISAL_OUT_OVERFLOW) {
        in_.fail(state_.avail_in, rc == ISAL_INCORRECT_CHECKSUM
                                      ? "damaged gzip data: its checksum does not match"
                                      : "damaged gzip data");
      }
      holds_output_ = state_.avail_out == 0 && state_.block_state != ISAL_BLOCK_FINISH;
    }
    return offered - state_.avail_out;
  }

 private:
  void start_member() {
    uint8_t* const next = state_.next_in;
    const uint32_t available = state_.avail_in;
    isal_inflate_init(&state_);
    state_.crc_flag = ISAL_GZIP;
    state_.next_in = next;
    state_.avail_in = available;
    holds_output_ = false;
  }

  // After a member, another member, zeros that pad a tape block, or nothing may follow.
  bool next_member() {
    while (true) {
      while (state_.avail_in > 0 && *state_.next_in == 0) {
        ++state_.next_in;
        --state_.avail_in;
      }
      if (state_.avail_in > 0) {
        break;
      }
      if (!in_.next()) {
        return false;
      }
      state_.next_in = reinterpret_cast<uint8_t*>(in_.data());
      state_.avail_in = static_cast<uint32_t>(in_.size());
    }
    if (*state_.next_in != 0x1f) {
      in_.fail(state_.avail_in, "unexpected data after the end of the gzip data");
    }
    uint8_t* const out = state_.next_out;
    const uint32_t room = state_.avail_out;
    start_member();
    state_.next_out = out;
    state_.avail_out = room;
    return true;
  }

  Compressed in_;
  inflate_state state_{};
  bool holds_output_ = false;
};

class ZstdSource final : public ByteSource {
 public:
  ZstdSource(std::unique_ptr<ByteSource> source, std::string name)
      : in_(std::move(source), std::move(name)), stream_(ZSTD_createDStream(), ZSTD_freeDStream) {}

  size_t read(char* out, size_t size) override {
    ZSTD_outBuffer target{out, size, 0};
    while (target.pos == 0) {
      if (input_.pos == input_.size && !holds_output_) {
        if (!in_.next()) {
          if (rest_ != 0) {
            in_.fail(0, "the zstd data ends within a frame: the file is cut off");
          }
          return 0;
        }
        input_ = {in_.data(), in_.size(), 0};
      }
      rest_ = ZSTD_decompressStream(stream_.get(), &target, &input_);
      if (ZSTD_isError(rest_) != 0U) {
        in_.fail(input_.size - input_.pos,
                 fmt::format("damaged zstd data: {}", ZSTD_getErrorName(rest_)));
      }
      holds_output_ = target.pos == target.size && rest_ != 0;
    }
    return target.pos;
  }

 private:
  Compressed in_;
  std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream_;
  ZSTD_inBuffer input_{nullptr, 0, 0};
  size_t rest_ = 1;  // 0: a frame has just ended
  bool holds_output_ = false;
};

}  // namespace

std::unique_ptr<ByteSource> inflate_gzip(std::unique_ptr<ByteSource> compressed, std::string name) {
  return std::make_unique<GzipSource>(std::move(compressed), std::move(name));
}

std::unique_ptr<ByteSource> inflate_zstd(std::unique_ptr<ByteSource> compressed, std::string name) {
  return std::make_unique<ZstdSource>(std::move(compressed), std::move(name));
}

}  // namespace shardlens::trace
