#include "core/files/directory_lock.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.h"
#include "tests/support/temporary_directory.h"

namespace shardlens {
namespace {

namespace fs = std::filesystem;
using test::TemporaryDirectory;
using testing::HasSubstr;
using testing::ThrowsMessage;

class DirectoryLockTest : public testing::Test {
 protected:
  [[nodiscard]] LockedPlace place() const {
    return {file(), "--save saved", "is saving a run there"};
  }
  [[nodiscard]] fs::path file() const { return directory_.path() / "save.lock"; }
  [[nodiscard]] static std::string text_of(const fs::path& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  [[nodiscard]] static std::string this_process() {
    char host[256] = {};
    EXPECT_EQ(::gethostname(host, sizeof host - 1), 0);
    return "process " + std::to_string(::getpid()) + " of " + host;
  }
  TemporaryDirectory directory_;
};

TEST_F(DirectoryLockTest, TheSecondIsToldWhoHasIt) {
  {
    const DirectoryLock first(place());
    EXPECT_TRUE(first.held());
    EXPECT_EQ(DirectoryLock::holder(file()), this_process());
    const std::string expected = "--save saved: " + this_process() +
                                 " is saving a run there; wait for it to end or choose another "
                                 "directory";
    EXPECT_THAT([&] { const DirectoryLock second(place()); }, ThrowsMessage<UsageError>(expected));
    EXPECT_THAT([&] { DirectoryLock::check(place()); }, ThrowsMessage<UsageError>(expected));
  }
  EXPECT_FALSE(fs::exists(file()));
  EXPECT_EQ(DirectoryLock::holder(file()), std::nullopt);
  DirectoryLock::check(place());
}

// What a killed process leaves is a file without a lock.
TEST_F(DirectoryLockTest, AFileWithoutALockIsNotTrusted) {
  std::ofstream(file()) << "4711 elsewhere\n";
  EXPECT_EQ(DirectoryLock::holder(file()), std::nullopt);
  const DirectoryLock lock(place());
  EXPECT_EQ(DirectoryLock::holder(file()), this_process());
}

TEST_F(DirectoryLockTest, AForeignFileIsNotTouched) {
  for (const char* text : {"my notes", "my notes\n", "12 monkeys", "12 a\nb\n", " \n"}) {
    std::ofstream(file()) << text;
    EXPECT_THAT([&] { const DirectoryLock lock(place()); },
                ThrowsMessage<UsageError>(HasSubstr("save.lock is in the way")))
        << text;
    EXPECT_EQ(text_of(file()), text);
  }
}

TEST_F(DirectoryLockTest, ALinkIsNotFollowed) {
  const fs::path notes = directory_.path() / "notes";
  fs::create_symlink("notes", file());
  for (const bool exists : {false, true}) {
    if (exists) {
      const std::ofstream empty(notes);
    }
    EXPECT_THAT([&] { const DirectoryLock lock(place()); },
                ThrowsMessage<RuntimeFault>(HasSubstr("--save saved: cannot be written: ")));
    EXPECT_TRUE(fs::is_symlink(file()));
    EXPECT_EQ(fs::exists(notes), exists);
  }
}

TEST_F(DirectoryLockTest, ADirectoryInTheWayAndAMissingFolderAreErrors) {
  fs::create_directory(file());
  EXPECT_THROW(const DirectoryLock lock(place()), RuntimeFault);
  EXPECT_TRUE(fs::is_directory(file()));
  EXPECT_THROW(const DirectoryLock lock({directory_.path() / "no" / "save.lock", "--save no", ""}),
               RuntimeFault);
}

// The file of a place that was replaced meanwhile is another process's.
TEST_F(DirectoryLockTest, OnlyItsOwnFileIsRemoved) {
  {
    const DirectoryLock lock(place());
    fs::remove(file());
    std::ofstream(file()) << "another";
  }
  EXPECT_EQ(text_of(file()), "another");
}

}  // namespace
}  // namespace shardlens
