#include "cli/capture_directory.h"

#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "core/base/error.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

class CaptureDirectoryTest : public testing::Test {
 protected:
  CaptureDirectoryTest()
      : path_(fs::path(testing::TempDir()) / ("shardlens_out_" + std::to_string(::getpid()))) {
    fs::remove_all(path_);
  }
  ~CaptureDirectoryTest() override { fs::remove_all(path_); }
  void put(const std::string& name) { std::ofstream(path_ / name) << "x"; }
  std::string refusal() {
    try {
      prepare_capture_directory(path_);
      return "";
    } catch (const UsageError& error) {
      return error.what();
    }
  }
  fs::path path_;
};

TEST_F(CaptureDirectoryTest, MakesWhatIsNotThere) {
  path_ /= "a/b";
  EXPECT_EQ(refusal(), "");
  EXPECT_TRUE(fs::is_directory(path_));
  path_ = path_.parent_path().parent_path();
}

TEST_F(CaptureDirectoryTest, ReplacesAnEarlierCapture) {
  fs::create_directories(path_);
  for (const char* name : {"metrics.jsonl", "plan.json", "workload.json", "run.json", "config.json",
                           "rank0.pt.trace.json.gz", "rank12.spool", "rank1.now"}) {
    put(name);
  }
  check_capture_directory(path_);
  EXPECT_TRUE(fs::exists(path_ / "run.json")) << "a check must change nothing";
  EXPECT_EQ(refusal(), "");
  EXPECT_TRUE(fs::is_empty(path_));
}

TEST_F(CaptureDirectoryTest, TouchesNothingWhereSomethingElseIs) {
  for (const char* name :
       {"notes.txt", "rank.spool", "rankx.spool", "rank1.json", "rank1.pt.trace.json"}) {
    fs::create_directories(path_);
    put("run.json");
    put(name);
    EXPECT_THAT(refusal(), testing::HasSubstr(std::string("'") + name + "'"));
    EXPECT_TRUE(fs::exists(path_ / "run.json"));
    fs::remove_all(path_);
  }
  fs::create_directories(path_);
  put("config.json");  // without run.json beside it: somebody's model
  EXPECT_THAT(refusal(), testing::HasSubstr("'config.json'"));
  EXPECT_TRUE(fs::exists(path_ / "config.json"));
  fs::remove_all(path_);
  fs::create_directories(path_ / "plan.json");  // a directory is none of ours, whatever its name
  EXPECT_THAT(refusal(), testing::HasSubstr("plan.json"));
}

TEST_F(CaptureDirectoryTest, RefusesAFileInTheWay) {
  std::ofstream(path_) << "x";
  EXPECT_THAT(refusal(), testing::HasSubstr("in the way"));
}

}  // namespace
}  // namespace shardlens::cli
