#include "cli/capture/private_directory.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

class PrivateDirectoryTest : public testing::Test {
 protected:
  PrivateDirectoryTest() {
    const char* before = std::getenv("TMPDIR");
    before_ = before == nullptr ? "" : before;
    set(temporary_.path());
  }
  ~PrivateDirectoryTest() override {
    before_.empty() ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", before_.c_str(), 1);
  }
  static void set(const fs::path& path) { ::setenv("TMPDIR", path.c_str(), 1); }

  // What a process left that made such a directory and was killed.
  [[nodiscard]] fs::path left_behind() const {
    int pipes[2] = {-1, -1};
    EXPECT_EQ(::pipe(pipes), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const auto* directory = new PrivateDirectory;
      std::ofstream(directory->path() / "store") << "x";
      fs::create_directories(directory->path() / "captures/0");
      const std::string path = directory->path().string();
      (void)!::write(pipes[1], path.data(), path.size());
      ::raise(SIGKILL);
    }
    std::string path(4096, '\0');
    const ssize_t size = ::read(pipes[0], path.data(), path.size());
    EXPECT_GT(size, 0);
    ::waitpid(child, nullptr, 0);
    ::close(pipes[0]);
    ::close(pipes[1]);
    path.resize(size > 0 ? static_cast<size_t>(size) : 0);
    return path;
  }

  test::TemporaryDirectory temporary_;
  std::string before_;
};

TEST_F(PrivateDirectoryTest, IsOfThisUserOnlyAndGoesWithItsObject) {
  fs::path path;
  {
    const PrivateDirectory directory;
    path = directory.path();
    EXPECT_EQ(path.parent_path(), temporary_.path());
    EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_all);
    fs::create_directories(path / "a/b");
    std::ofstream(path / "a/b/c") << "x";
  }
  EXPECT_TRUE(fs::is_empty(temporary_.path()));
}

TEST_F(PrivateDirectoryTest, RemovesWhatAKilledProcessLeft) {
  const fs::path old = left_behind();
  ASSERT_TRUE(fs::exists(old / "store"));
  const PrivateDirectory living;
  EXPECT_FALSE(fs::exists(old));
  const PrivateDirectory another;
  EXPECT_TRUE(fs::exists(living.path()));
}

// Finished captures may have such names, as given with --out, and be as old as they like.
TEST_F(PrivateDirectoryTest, OtherDirectoriesStayWhateverTheirNames) {
  const fs::path old = left_behind();
  const std::string mark = "shardlens-private";
  const std::string digits(32, 'a');
  const fs::path copied = temporary_.path() / ("shardlens-run-" + digits);
  for (const char* name : {"shardlens-run-old", "shardlens-run-XYZ123", "other"}) {
    fs::create_directory(temporary_.path() / name);
  }
  fs::copy(old, copied, fs::copy_options::recursive);  // the identifier is not that of the name
  fs::create_directory(temporary_.path() / "shardlens-run-empty");
  { const std::ofstream empty(temporary_.path() / "shardlens-run-empty" / mark); }
  const fs::path linked = temporary_.path() / "shardlens-run-linked";
  fs::create_directory(linked);
  fs::create_symlink(old / mark, linked / mark);
  for (const auto& entry : fs::directory_iterator(temporary_.path())) {
    std::ofstream(entry.path() / "capture") << "theirs";
    fs::last_write_time(entry.path(), fs::file_time_type::clock::now() - std::chrono::hours(48));
  }
  fs::create_directory_symlink(temporary_.path() / "other",
                               temporary_.path() / ("shardlens-run-" + std::string(32, 'b')));
  { const PrivateDirectory directory; }
  EXPECT_FALSE(fs::exists(old));
  for (const fs::path& each :
       {temporary_.path() / "shardlens-run-old", temporary_.path() / "shardlens-run-XYZ123",
        temporary_.path() / "shardlens-run-empty", temporary_.path() / "other", copied, linked}) {
    EXPECT_TRUE(fs::exists(each / "capture")) << each;
  }
}

TEST_F(PrivateDirectoryTest, WhatALinkInItLeadsToStays) {
  const fs::path other = temporary_.path() / "other";
  fs::create_directory(other);
  std::ofstream(other / "file") << "theirs";
  fs::path path;
  {
    const PrivateDirectory directory;
    path = directory.path();
    fs::create_directory_symlink(other, path / "link");
  }
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE(fs::exists(other / "file"));
}

TEST_F(PrivateDirectoryTest, NamesTheDirectoryThatCannotBeUsed) {
  set(temporary_.path() / "missing");
  EXPECT_THAT(test::message_of<RuntimeFault>([] { const PrivateDirectory directory; }),
              testing::HasSubstr("TMPDIR=" + (temporary_.path() / "missing").string()));
}

}  // namespace
}  // namespace shardlens::cli
