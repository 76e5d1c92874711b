#include "profiler/trace/bytes/read_ahead.h"

#include <algorithm>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace shardlens::trace {
namespace {

// Gives `text` a few bytes at a time, then fails if `fails`.
class Pieces final : public ByteSource {
 public:
  Pieces(std::string text, size_t piece, bool fails)
      : text_(std::move(text)), piece_(piece), fails_(fails) {}
  size_t read(char* out, size_t size) override {
    const size_t taken = std::min({size, piece_, text_.size() - at_});
    if (taken == 0 && fails_) {
      throw InputError("pieces", "damaged");
    }
    std::copy_n(text_.data() + at_, taken, out);
    at_ += taken;
    return taken;
  }

 private:
  std::string text_;
  size_t piece_, at_ = 0;
  bool fails_;
};

std::string numbered(size_t bytes) {
  std::string text;
  for (int i = 0; text.size() < bytes; ++i) {
    text += std::to_string(i) + ' ';
  }
  return text;
}

// The reading thread starts at the beginning, in the middle, and never.
class ReadAheadTest : public testing::TestWithParam<size_t> {};

TEST_P(ReadAheadTest, GivesTheWholeTextInOrder) {
  const std::string text = numbered(3 * kAheadBlocks * kAheadBlockBytes);
  for (const size_t piece : {size_t{4093}, kAheadBlockBytes, text.size()}) {
    EXPECT_EQ(read_all(*read_ahead(std::make_unique<Pieces>(text, piece, false), GetParam())),
              text);
  }
}

TEST_P(ReadAheadTest, FailsBehindTheBytesBeforeTheFault) {
  const std::string text = numbered(2 * kAheadBlockBytes);
  const auto source = read_ahead(std::make_unique<Pieces>(text, 5000, true), GetParam());
  std::string got(text.size(), '\0');
  for (size_t at = 0; at < got.size();) {
    at += source->read(got.data() + at, got.size() - at);
  }
  EXPECT_EQ(got, text);
  char byte = 0;
  EXPECT_THROW((void)source->read(&byte, 1), InputError);
}

TEST_P(ReadAheadTest, EndsWhileBlocksAreUnread) {
  const auto source =
      read_ahead(std::make_unique<Pieces>(numbered(8 * kAheadBlocks * kAheadBlockBytes),
                                          kAheadBlockBytes, false),
                 GetParam());
  std::string first(1000, '\0');
  EXPECT_EQ(source->read(first.data(), first.size()), 1000U);
}

INSTANTIATE_TEST_SUITE_P(From,
                         ReadAheadTest,
                         testing::Values(size_t{0}, size_t{300'000}, kAheadFrom),
                         [](const auto& each) { return "byte_" + std::to_string(each.param); });

}  // namespace
}  // namespace shardlens::trace
