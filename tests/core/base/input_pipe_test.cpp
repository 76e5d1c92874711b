#include "core/base/input_pipe.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"

namespace shardlens {
namespace {

class InputPipeTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0); }
  void TearDown() override { std::filesystem::remove(path_); }
  std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("shardlens-pipe-" + std::to_string(::getpid()));
};

TEST_F(InputPipeTest, WaitsForItsWriterAndLosesNothing) {
  std::thread writer([this] { std::ofstream(path_) << "what it wrote"; });
  std::ifstream in;
  {
    const InputPipe pipe(path_);
    writer.join();  // has closed its end
    in.open(path_);
  }
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(text, "what it wrote");
}

TEST_F(InputPipeTest, WithoutAWriterIsAnError) {
  try {
    const InputPipe pipe(path_);
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("nothing was written for 10 s"));
  }
}

TEST(InputPipe, LeavesOtherPathsAsTheyAre) {
  EXPECT_NO_THROW(InputPipe("/dev/null"));
  EXPECT_NO_THROW(InputPipe("/no/such/file"));
}

}  // namespace
}  // namespace shardlens
