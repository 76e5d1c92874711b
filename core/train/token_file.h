#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "core/workload/step_settings.h"

namespace shardlens::train {

// A file of token ids: ".u32.bin" little-endian uint32, ".bin" uint16, any other file one byte per
// token. Its content stays in the file: each read() reads its tokens from there. The file is not
// memory-mapped, since a process that touches pages of a map is killed if the file was cut off.
//
// Samples     n = (count - 1) div seq; sample i is tokens[i·seq … i·seq+seq], so consecutive
//             samples share one token.
// Threads     read() may be called by several threads at once.
// Errors      InputError naming the file if it cannot be read, its size is not a multiple of a
//             token's, or it became shorter than it was when it was opened.
class TokenFile {
 public:
  explicit TokenFile(const std::filesystem::path& path);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] int64_t count() const { return count_; }
  [[nodiscard]] int64_t samples(int64_t seq) const { return count_ < 1 ? 0 : (count_ - 1) / seq; }
  // Tokens [first, first + out.size()).
  void read(int64_t first, std::span<int64_t> out) const;
  // Position of the first of tokens [0, end) that is not below `vocab_size`, or -1.
  [[nodiscard]] int64_t first_outside(int64_t vocab_size, int64_t end) const;

 private:
  template <typename Token>
  void read_as(int64_t first, std::span<int64_t> out) const;

  std::filesystem::path path_;
  int descriptor_;
  int width_;
  int64_t count_ = 0;
};

// Determines which sample each row of a batch reads; the data order of fsdp_reference.py.
struct BatchShape {
  int64_t rank = 0, ranks = 1, batch = 1, seq = 1;
  int64_t first_sample = 0;  // that step 0 reads
};

[[nodiscard]] inline BatchShape shape_of(const plan::StepSettings& step,
                                         int64_t rank,
                                         int64_t ranks) {
  return {rank, ranks, step.batch, step.seq.value_or(1), 0};
}

// Row `row` of step `step` (a microbatch m of step s counts as step s·M + m) reads sample
// (first_sample + (step · ranks + rank) · batch + row) mod samples.
[[nodiscard]] constexpr int64_t sample_index(const BatchShape& shape,
                                             int64_t step,
                                             int64_t row,
                                             int64_t samples) {
  return (shape.first_sample + (step * shape.ranks + shape.rank) * shape.batch + row) % samples;
}

// Checks the tokens before training starts, with the same result on every rank: there are enough
// samples for the ranks, and no id in the samples of the first `steps` steps is outside the
// vocabulary (in all samples if first_sample is not 0). Errors: InputError naming file, counts, and
// the position of a wrong token.
void check_tokens(const TokenFile& file,
                  const BatchShape& shape,
                  int64_t steps,
                  int64_t vocab_size);

}  // namespace shardlens::train
