#include "core/train/token_file.h"

#include <algorithm>
#include <cstring>
#include <string>

#include <fmt/format.h>

#include "core/base/error.h"

namespace shardlens::train {
namespace {

int width_of(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  if (name.ends_with(".u32.bin")) {
    return 4;
  }
  return name.ends_with(".bin") ? 2 : 1;
}

template <typename Token>
void widen(const std::byte* data, std::span<int64_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    Token token;
    std::memcpy(&token, data + i * sizeof(Token), sizeof(Token));
    out[i] = static_cast<int64_t>(token);
  }
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path)
    : file_(path),
      width_(width_of(path)),
      count_(static_cast<int64_t>(file_.bytes().size()) / width_) {
  if (file_.bytes().size() % static_cast<size_t>(width_) != 0) {
    throw InputError(path.string(),
                     fmt::format("{} bytes are not a multiple of the {} bytes of a token",
                                 file_.bytes().size(), width_));
  }
}

void TokenFile::read(int64_t first, std::span<int64_t> out) const {
  SHARDLENS_CHECK(first >= 0 && first + static_cast<int64_t>(out.size()) <= count_,
                  "tokens outside the file");
  const std::byte* data = file_.bytes().data() + first * width_;
  switch (width_) {
    case 1:
      return widen<uint8_t>(data, out);
    case 2:
      return widen<uint16_t>(data, out);
    default:
      return widen<uint32_t>(data, out);
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
