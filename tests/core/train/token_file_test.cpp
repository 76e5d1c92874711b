#include "core/train/token_file.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/core/weights/checkpoint_builder.h"

namespace shardlens::train {
namespace {

using models::testing::TemporaryDirectory;
using models::testing::write;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TokenFileTest : public ::testing::Test {
 protected:
  std::filesystem::path file(const std::string& name, const std::string& content) {
    return write(directory_.path() / name, content);
  }
  static std::string words(std::initializer_list<uint16_t> tokens) {
    std::string out;
    for (const uint16_t token : tokens) {
      out += static_cast<char>(token & 0xffU);
      out += static_cast<char>(token >> 8U);
    }
    return out;
  }
  static std::vector<int64_t> read_all(const TokenFile& tokens) {
    std::vector<int64_t> out(static_cast<size_t>(tokens.count()));
    tokens.read(0, out);
    return out;
  }
  static std::string message_of(const TokenFile& tokens,
                                const BatchShape& shape,
                                int64_t steps,
                                int64_t vocab) {
    try {
      check_tokens(tokens, shape, steps, vocab);
      return "no error";
    } catch (const InputError& error) {
      return error.what();
    }
  }

 private:
  TemporaryDirectory directory_;
};

TEST_F(TokenFileTest, NameSaysTheWidth) {
  EXPECT_THAT(read_all(TokenFile(file("t.bin", words({1, 300, 65535})))),
              ElementsAre(1, 300, 65535));
  EXPECT_THAT(read_all(TokenFile(file("t.u32.bin", words({1, 2, 65535, 0})))),
              ElementsAre(131073, 65535));
  EXPECT_THAT(read_all(TokenFile(file("t.txt", "aé"))), ElementsAre('a', 0xc3, 0xa9));
  EXPECT_EQ(TokenFile(file("empty.txt", "")).samples(4), 0);
}

TEST_F(TokenFileTest, RefusesHalfATokenAndAMissingFile) {
  try {
    const TokenFile tokens(file("t.u32.bin", "abcdef"));
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("t.u32.bin: 6 bytes are not a multiple of the 4 bytes of a token"));
  }
  EXPECT_THROW(TokenFile("/nonexistent/tokens.bin"), InputError);
}

// Reading pages of a memory map that the file no longer has would kill the process.
TEST_F(TokenFileTest, AFileThatIsCutOffIsAnErrorWithItsName) {
  const auto path = file("t.bin", std::string(40000, 'a'));
  const TokenFile tokens(path);
  EXPECT_EQ(read_all(tokens).back(), 'a' * 257);
  std::filesystem::resize_file(path, 100);
  std::vector<int64_t> out(10);
  tokens.read(40, out);
  try {
    tokens.read(41, out);
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("t.bin"), HasSubstr("it had 40000 bytes, and now "
                                                                  "ends before byte 102")));
  }
}

TEST_F(TokenFileTest, SamplesShareOneToken) {
  const TokenFile tokens(file("t.txt", "0123456789"));
  EXPECT_EQ(tokens.samples(3), 3);  // (10 - 1) div 3
  EXPECT_EQ(tokens.samples(9), 1);
  EXPECT_EQ(tokens.samples(10), 0);
}

TEST(SampleIndexTest, FollowsTheReferenceAndWraps) {
  // ((step · 3 + rank) · 2 + row) mod 7, by hand.
  const BatchShape shape{.rank = 1, .ranks = 3, .batch = 2, .seq = 8};
  EXPECT_EQ(sample_index(shape, 0, 0, 7), 2);
  EXPECT_EQ(sample_index(shape, 0, 1, 7), 3);
  EXPECT_EQ(sample_index(shape, 1, 0, 7), 1);
  EXPECT_EQ(sample_index(shape, 1000000, 1, 7), 2);  // 6000003 mod 7
}

TEST_F(TokenFileTest, ChecksWhatTrainingWillRead) {
  const TokenFile tokens(file("t.bin", words({0, 1, 2, 3, 4, 5, 6, 7, 8})));
  const BatchShape two{.rank = 0, .ranks = 2, .batch = 1, .seq = 2};
  EXPECT_EQ(message_of(tokens, two, 1000, 9), "no error");
  EXPECT_THAT(message_of(tokens, two, 1000, 8),
              HasSubstr("token 8 has id 8, but the model's vocabulary has 8 ids"));
  // One step of two ranks reads samples 0 and 1: tokens 0 … 4.
  EXPECT_EQ(message_of(tokens, two, 1, 5), "no error");
  EXPECT_THAT(message_of(tokens, two, 1, 4), HasSubstr("token 4 has id 4"));
  EXPECT_EQ(message_of(tokens, two, int64_t{1} << 62, 9), "no error");
}

TEST_F(TokenFileTest, NamesTooFewSamples) {
  const TokenFile tokens(file("t.bin", words({0, 1, 2, 3, 4, 5, 6, 7, 8})));
  EXPECT_THAT(message_of(tokens, {.rank = 0, .ranks = 5, .batch = 1, .seq = 2}, 1, 9),
              AllOf(HasSubstr("t.bin: 5 ranks"), HasSubstr("only 4 samples of 2 tokens")));
  EXPECT_THAT(message_of(tokens, {.rank = 0, .ranks = 1, .batch = 1, .seq = 9}, 1, 9),
              HasSubstr("9 tokens are too few for one sample of 9 (it needs 10)"));
}

}  // namespace
}  // namespace shardlens::train
