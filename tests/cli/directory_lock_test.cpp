// No command that writes a capture directory touches one that another process is writing.

#include <filesystem>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include "tests/support/shardlens_command.h"

namespace shardlens {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class DirectoryLockTest : public ShardlensCommandTest {
 protected:
  [[nodiscard]] fs::path out() const { return fs::path(folder_) / "out"; }
  [[nodiscard]] std::vector<std::string> commands() const {
    const std::string data = SHARDLENS_TEST_DATA;
    const std::string trace = data + "/pytorch_traces/fsdp2-default/rank0.pt.trace.json.gz";
    const std::string model = " --model " + data + "/llama-tiny";
    return {"simulate" + model + " --hardware 4xPCIe --out " + out().string(),
            "convert " + trace + " --out " + out().string(),
            "plan --from-trace " + trace + " --out " + out().string()};
  }
};

TEST_F(DirectoryLockTest, CommandsAreRefusedAndTouchNothing) {
  fs::create_directory(out());
  const int fd = ::open((out() / "capture.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::write(fd, "4711 elsewhere\n", 15), 15);
  ASSERT_EQ(::flock(fd, LOCK_EX | LOCK_NB), 0);
  std::vector<std::string> all = commands();
  all.push_back("capture --model " + std::string(SHARDLENS_TEST_DATA) + "/llama-tiny --tokens " +
                SHARDLENS_TEST_DATA + "/tokens.u16.bin --out " + out().string());
  for (const std::string& command : all) {
    const CommandResult result = run(command);
    EXPECT_EQ(result.code, 2) << command;
    EXPECT_THAT(result.err, AllOf(HasSubstr("--out " + out().string() +
                                            ": process 4711 of elsewhere is writing a capture"),
                                  testing::EndsWith("another directory\n")))
        << command;
  }
  ::close(fd);
  EXPECT_EQ(text((out() / "capture.lock").string()), "4711 elsewhere\n");
  EXPECT_EQ(std::distance(fs::directory_iterator(out()), {}), 1);
}

TEST_F(DirectoryLockTest, ASearchIsRefusedItsState) {
  const std::string state = folder_ + "/state.jsonl";
  const int fd = ::open((state + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::write(fd, "4711 elsewhere\n", 15), 15);
  ASSERT_EQ(::flock(fd, LOCK_EX | LOCK_NB), 0);
  const std::string command =
      "search --model " + std::string(SHARDLENS_TEST_DATA) +
      "/llama-tiny --hardware 8xH100 --seq 32 --memory-limit 1GiB --state " + state;
  const CommandResult refused = run(command);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--state " + state +
                                     ": process 4711 of elsewhere is searching with it; wait for "
                                     "it to end or name another file"));
  EXPECT_FALSE(fs::exists(state));
  ::close(fd);
  EXPECT_EQ(run(command).code, 0);
  EXPECT_FALSE(fs::exists(state + ".lock"));
}

// A lock file left by a killed process does not lock the directory; the next command removes it.
TEST_F(DirectoryLockTest, CommandsLeaveNoLock) {
  for (const std::string& command : commands()) {
    fs::create_directory(out());
    { const std::ofstream file(out() / "capture.lock"); }
    const CommandResult result = run(command);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_FALSE(fs::exists(out() / "capture.lock")) << command;
    EXPECT_FALSE(fs::is_empty(out()));
    fs::remove_all(out());
  }
}

}  // namespace
}  // namespace shardlens
