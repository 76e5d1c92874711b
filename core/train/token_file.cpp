#include "core/train/token_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/files/input_file.h"

namespace shardlens::train {
namespace {

int width_of(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  if (name.ends_with(".u32.bin")) {
    return 4;
  }
  return name.ends_with(".bin") ? 2 : 1;
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path)
    : path_(path),
      descriptor_(InputFile(path, {.most_bytes = uint64_t{1} << 42}).release()),
      width_(width_of(path)) {
  struct stat status {};
  int reason = 0;
  if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0) {
    reason = errno;
  } else if (!S_ISREG(status.st_mode)) {
    reason = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
  }
  std::string problem;
  if (reason != 0) {
    problem = fmt::format("cannot read: {}", std::strerror(reason));
  } else if (status.st_size % width_ != 0) {
    problem = fmt::format("{} bytes are not a multiple of the {} bytes of a token", status.st_size,
                          width_);
  }
  if (!problem.empty()) {
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
    throw InputError(path_.string(), problem);
  }
  count_ = status.st_size / width_;
}

TokenFile::~TokenFile() {
  ::close(descriptor_);
}

template <typename Token>
void TokenFile::read_as(int64_t first, std::span<int64_t> out) const {
  constexpr size_t kChunk = 4096;
  std::array<Token, kChunk> tokens;
  for (size_t done = 0; done < out.size(); done += kChunk) {
    const size_t now = std::min(kChunk, out.size() - done);
    const std::span<char> bytes(reinterpret_cast<char*>(tokens.data()), now * sizeof(Token));
    const size_t begin = (static_cast<size_t>(first) + done) * sizeof(Token);
    size_t have = 0;
    while (have < bytes.size()) {
      const ssize_t more = ::pread(descriptor_, bytes.data() + have, bytes.size() - have,
                                   static_cast<off_t>(begin + have));
      if (more < 0 && errno == EINTR) {
        continue;
      }
      if (more <= 0) {
        throw InputError(
            path_.string(),
            more < 0 ? fmt::format("cannot read: {}", std::strerror(errno))
                     : fmt::format("has become shorter since the run began: it had {} bytes, "
                                   "and now ends before byte {}",
                                   count_ * width_, begin + bytes.size()));
      }
      have += static_cast<size_t>(more);
    }
    std::copy_n(tokens.begin(), now, out.begin() + static_cast<std::ptrdiff_t>(done));
  }
}

void TokenFile::read(int64_t first, std::span<int64_t> out) const {
  SHARDLENS_CHECK(first >= 0 && first + static_cast<int64_t>(out.size()) <= count_,
                  "tokens outside the file");
  switch (width_) {
    case 1:
      return read_as<uint8_t>(first, out);
    case 2:
      return read_as<uint16_t>(first, out);
    default:
      return read_as<uint32_t>(first, out);
  }
}

int64_t TokenFile::first_outside(int64_t vocab_size, int64_t end) const {
  if (vocab_size > (int64_t{1} << (8 * width_)) - 1) {
    return -1;  // every token of this width is below vocab_size
  }
  constexpr int64_t kChunk = 4096;
  int64_t buffer[kChunk];
  for (int64_t first = 0; first < end; first += kChunk) {
    const std::span<int64_t> chunk(buffer, static_cast<size_t>(std::min(kChunk, end - first)));
    read(first, chunk);
    const auto wrong = std::find_if(chunk.begin(), chunk.end(),
                                    [&](int64_t token) { return token >= vocab_size; });
    if (wrong != chunk.end()) {
      return first + (wrong - chunk.begin());
    }
  }
  return -1;
}

void check_tokens(const TokenFile& file,
                  const BatchShape& shape,
                  int64_t steps,
                  int64_t vocab_size) {
  const int64_t samples = file.samples(shape.seq);
  if (samples < 1) {
    throw InputError(file.path().string(),
                     fmt::format("{} tokens are too few for one sample of {} (it needs {})",
                                 file.count(), shape.seq, shape.seq + 1));
  }
  if (samples < shape.ranks) {
    throw InputError(file.path().string(),
                     fmt::format("{} ranks, but only {} samples of {} tokens: use fewer ranks, a "
                                 "shorter --seq or more tokens",
                                 shape.ranks, samples, shape.seq));
  }
  // Samples are read in order and start again after the last one, so the used ones are a prefix of
  // the file. The comparison divides because steps · ranks · batch may overflow 63 bits.
  const int64_t per_step = shape.ranks * shape.batch;
  const bool all = shape.first_sample != 0 || steps >= (samples + per_step - 1) / per_step;
  const int64_t used = all ? samples : steps * per_step;
  const int64_t wrong = file.first_outside(vocab_size, used * shape.seq + 1);
  if (wrong >= 0) {
    int64_t token = 0;
    file.read(wrong, {&token, 1});
    throw InputError(file.path().string(),
                     fmt::format("token {} has id {}, but the model's vocabulary has {} ids", wrong,
                                 token, vocab_size));
  }
}

}  // namespace shardlens::train
