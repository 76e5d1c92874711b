#include "profiler/trace/compression.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include <fmt/format.h>
#include <isa-l/igzip_lib.h>
#include <zstd.h>

#include "core/base/error.h"

namespace shardlens::trace {
namespace {

constexpr size_t kChunk = size_t{1} << 20;

bool starts_with(std::string_view bytes, std::string_view magic) {
  return bytes.substr(0, magic.size()) == magic;
}

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

// Grows a buffer by realloc: doubling by copy would need three times the text.
class TextBuilder {
 public:
  explicit TextBuilder(std::string source) : source_(std::move(source)) { grow(kChunk); }

  // Room for at least kChunk / 4 further bytes.
  std::pair<char*, size_t> room() {
    if (text_.capacity_ - text_.size_ - LoadedText::kPadding < kChunk / 4) {
      grow(text_.capacity_ * 2);
    }
    return {text_.data_.get() + text_.size_, text_.capacity_ - text_.size_ - LoadedText::kPadding};
  }
  void took(size_t bytes) {
    text_.size_ += bytes;
    if (text_.size_ > kMaxTextBytes) {
      throw InputError(source_,
                       "more than 4 GiB of text; convert a part of it, or capture fewer steps");
    }
  }
  LoadedText finish() {
    std::memset(text_.data_.get() + text_.size_, 0, LoadedText::kPadding);
    return std::move(text_);
  }

 private:
  void grow(size_t capacity) {
    char* data = static_cast<char*>(std::realloc(text_.data_.get(), capacity));  // NOLINT
    if (data == nullptr) {
      throw InputError(source_, fmt::format("needs more than {} MiB of memory", capacity >> 20));
    }
    (void)text_.data_.release();
    text_.data_.reset(data);
    text_.capacity_ = capacity;
  }

  std::string source_;
  LoadedText text_;
};

namespace {

class File {
 public:
  explicit File(const std::filesystem::path& path) : source_(path.string()) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) {
      throw InputError(source_, "no such file");
    }
    if (std::filesystem::is_directory(path, error)) {
      throw InputError(source_, "is a directory, expected a file");
    }
    file_ = std::fopen(source_.c_str(), "rb");
    if (file_ == nullptr) {
      throw InputError(source_, std::strerror(errno));
    }
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (file_ != nullptr) {
      std::fclose(file_);
    }
  }
  size_t read(char* out, size_t bytes) {
    const size_t got = std::fread(out, 1, bytes, file_);
    if (got == 0 && std::ferror(file_) != 0) {
      throw InputError(source_, fmt::format("cannot be read: {}", std::strerror(errno)));
    }
    position_ += got;
    return got;
  }
  [[nodiscard]] const std::string& source() const { return source_; }
  [[nodiscard]] size_t position() const { return position_; }

 private:
  std::string source_;
  FILE* file_ = nullptr;
  size_t position_ = 0;
};

[[noreturn]] void fail_at(const File& file, size_t unread, const std::string& message) {
  throw InputError(fmt::format("{} at byte {}", file.source(), file.position() - unread), message);
}

LoadedText inflate(File& file, std::string first) {
  TextBuilder text(file.source());
  inflate_state state{};
  isal_inflate_init(&state);
  state.crc_flag = ISAL_GZIP;
  std::vector<char> chunk(kChunk);
  state.next_in = reinterpret_cast<uint8_t*>(first.data());
  state.avail_in = static_cast<uint32_t>(first.size());
  bool full = false;  // more output may be waiting inside the decoder
  while (true) {
    if (state.avail_in == 0 && !full) {
      const size_t got = file.read(chunk.data(), chunk.size());
      if (got == 0) {
        break;
      }
      state.next_in = reinterpret_cast<uint8_t*>(chunk.data());
      state.avail_in = static_cast<uint32_t>(got);
    }
    if (state.block_state == ISAL_BLOCK_FINISH && state.avail_in > 0) {  // a further member follows
      uint8_t* next = state.next_in;
      const uint32_t available = state.avail_in;
      isal_inflate_reset(&state);
      state.crc_flag = ISAL_GZIP;
      state.next_in = next;
      state.avail_in = available;
    }
    const auto [out, size] = text.room();
    state.next_out = reinterpret_cast<uint8_t*>(out);
    state.avail_out = static_cast<uint32_t>(std::min<size_t>(size, kChunk * 64));
    const uint32_t offered = state.avail_out;
    const int rc = isal_inflate(&state);
    text.took(offered - state.avail_out);
    full = state.avail_out == 0 && state.block_state != ISAL_BLOCK_FINISH;
    if (rc != ISAL_DECOMP_OK && rc != ISAL_END_INPUT && rc != ISAL_OUT_OVERFLOW) {
      fail_at(file, state.avail_in, "damaged gzip data");
    }
  }
  if (state.block_state != ISAL_BLOCK_FINISH) {
    fail_at(file, 0, "the gzip data ends before its end mark: the file is cut off");
  }
  return text.finish();
}

LoadedText unzstd(File& file, std::string first) {
  TextBuilder text(file.source());
  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(),
                                                                        ZSTD_freeDStream);
  std::vector<char> chunk(kChunk);
  ZSTD_inBuffer in{first.data(), first.size(), 0};
  size_t rest = 1;    // 0: a frame has just ended
  bool full = false;  // the decoder may hold more than it could hand out
  while (true) {
    if (in.pos == in.size && !full) {
      const size_t got = file.read(chunk.data(), chunk.size());
      if (got == 0) {
        break;
      }
      in = {chunk.data(), got, 0};
    }
    const auto [out, size] = text.room();
    ZSTD_outBuffer target{out, size, 0};
    rest = ZSTD_decompressStream(stream.get(), &target, &in);
    if (ZSTD_isError(rest) != 0U) {
      fail_at(file, in.size - in.pos,
              fmt::format("damaged zstd data: {}", ZSTD_getErrorName(rest)));
    }
    text.took(target.pos);
    full = target.pos == target.size;
  }
  if (rest != 0) {
    fail_at(file, 0, "the zstd data ends within a frame: the file is cut off");
  }
  return text.finish();
}

LoadedText plain(File& file, const std::string& first) {
  TextBuilder text(file.source());
  auto [out, size] = text.room();
  std::memcpy(out, first.data(), first.size());
  text.took(first.size());
  while (true) {
    const auto [next, room] = text.room();
    const size_t got = file.read(next, room);
    if (got == 0) {
      return text.finish();
    }
    text.took(got);
  }
}

}  // namespace

LoadedText load_text(const std::filesystem::path& path) {
  File file(path);
  std::string first(4, '\0');
  first.resize(file.read(first.data(), first.size()));
  if (first.empty()) {
    throw InputError(path.string(), "the file is empty");
  }
  if (starts_with(first, "\x1f\x8b")) {
    return inflate(file, std::move(first));
  }
  if (starts_with(first, "\x28\xb5\x2f\xfd")) {
    return unzstd(file, std::move(first));
  }
  return plain(file, first);
}

}  // namespace shardlens::trace
