#include "core/files/atomic_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace shardlens {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class AtomicFileTest : public testing::Test {
 protected:
  [[nodiscard]] fs::path at(const std::string& name) const { return directory_.path() / name; }
  [[nodiscard]] static std::string text(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  // Number of files, with temporary ones.
  [[nodiscard]] size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(directory_.path()), {}));
  }

  test::TemporaryDirectory directory_;
};

TEST_F(AtomicFileTest, HasItsNameOnlyWhenItIsWhole) {
  {
    AtomicFile file(at("a"));
    file.write("one ");
    EXPECT_FALSE(fs::exists(at("a")));
  }
  EXPECT_EQ(entries(), 0U);
  const std::string large(200'000, 'x');  // larger than several write buffers
  AtomicFile file(at("a"));
  file.write("one ");
  file.write(large);
  file.write(" two");
  file.commit();
  EXPECT_EQ(text(at("a")), "one " + large + " two");
  EXPECT_EQ(entries(), 1U);
}

TEST_F(AtomicFileTest, SymlinksStayAndTheirTargetsAreReplaced) {
  fs::create_directory(at("data"));
  std::ofstream(at("data/old")) << "before";
  fs::create_symlink("data/old", at("link"));  // relative to the link's folder
  fs::create_symlink("link", at("link_to_link"));
  const std::ifstream reader(at("data/old"));  // keeps the old file open
  write_file_atomically(at("link_to_link"), "after");
  EXPECT_TRUE(fs::is_symlink(at("link")));
  EXPECT_TRUE(fs::is_symlink(at("link_to_link")));
  EXPECT_FALSE(fs::is_symlink(at("data/old")));
  EXPECT_EQ(text(at("data/old")), "after");
}

TEST_F(AtomicFileTest, ALinksMissingTargetIsMade) {
  fs::create_directory(at("data"));
  fs::create_symlink(at("data/new"), at("link"));
  { const AtomicFile file(at("link")); }
  EXPECT_FALSE(fs::exists(at("data/new")));
  write_file_atomically(at("link"), "text");
  EXPECT_TRUE(fs::is_symlink(at("link")));
  EXPECT_EQ(text(at("data/new")), "text");
}

TEST_F(AtomicFileTest, DevicesStayDevices) {
  fs::create_symlink("/dev/null", at("null"));
  write_file_atomically(at("null"), "text");
  write_file_atomically("/dev/null", "text");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_TRUE(fs::is_symlink(at("null")));
  EXPECT_EQ(test::message_of<RuntimeFault>([] { write_file_atomically("/dev/full", "text"); }),
            "cannot write /dev/full: No space left on device");
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST_F(AtomicFileTest, AFifosReaderGetsTheBytes) {
  ASSERT_EQ(::mkfifo(at("fifo").c_str(), 0600), 0);
  std::string read;
  std::thread reader([&] { read = text(at("fifo")); });
  write_file_atomically(at("fifo"), "text");
  reader.join();
  EXPECT_EQ(read, "text");
  EXPECT_TRUE(fs::is_fifo(at("fifo")));
}

// Paths as a program gets them from a shell's `>> log` and `>(command)`.
TEST_F(AtomicFileTest, DescriptorsOfTheProcessAreWrittenWhereTheyAre) {
  const int fd = ::open(at("log").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::write(fd, "before ", 7), 7);
  write_file_atomically("/dev/fd/" + std::to_string(fd), "text");
  fs::create_symlink("/proc/self/fd/" + std::to_string(fd), at("link"));
  write_file_atomically(at("link"), " more");
  ASSERT_EQ(::write(fd, " after", 6), 6);
  ::close(fd);
  EXPECT_EQ(text(at("log")), "before text more after");
  EXPECT_THAT(test::message_of<RuntimeFault>([&] { write_file_atomically(at("link"), "text"); }),
              AllOf(HasSubstr(at("link").string()), HasSubstr("Bad file descriptor")));
}

TEST_F(AtomicFileTest, PermissionsOfTheReplacedFileStay) {
  const auto permissions = [&](const std::string& name) {
    return fs::status(at(name)).permissions();
  };
  std::ofstream(at("secret")) << "before";
  fs::permissions(at("secret"), fs::perms(0600));
  fs::create_symlink("secret", at("link"));
  AtomicFile file(at("link"));
  file.write("after");
  for (const auto& entry : fs::directory_iterator(directory_.path())) {
    EXPECT_FALSE(entry.is_regular_file() &&
                 permissions(entry.path().filename()) != fs::perms(0600));
  }
  file.commit();
  EXPECT_EQ(text(at("secret")), "after");
  EXPECT_EQ(permissions("secret"), fs::perms(0600));
  fs::permissions(at("secret"), fs::perms(0664));
  write_file_atomically(at("secret"), "again");
  EXPECT_EQ(permissions("secret"), fs::perms(0664));
  const mode_t umask = ::umask(027);
  write_file_atomically(at("new"), "text");
  ::umask(umask);
  EXPECT_EQ(permissions("new"), fs::perms(0640));
}

// The name that temporary files had before they were random.
TEST_F(AtomicFileTest, ALinkWithATemporaryNameIsNotFollowed) {
  std::ofstream(at("theirs")) << "before";
  for (int count = 0; count < 100; ++count) {
    fs::create_symlink("theirs",
                       at("a.tmp" + std::to_string(::getpid()) + "." + std::to_string(count)));
  }
  write_file_atomically(at("a"), "text");
  EXPECT_EQ(text(at("theirs")), "before");
  EXPECT_FALSE(fs::is_symlink(at("a")));
  EXPECT_EQ(text(at("a")), "text");
}

TEST_F(AtomicFileTest, TheLongestNameCanBeWritten) {
  const std::string longest(255, 'x');
  write_file_atomically(at(longest), "text");
  EXPECT_EQ(text(at(longest)), "text");
}

TEST_F(AtomicFileTest, ADirectoryThatIsExchangedIsNotWritten) {
  fs::create_directory(at("data"));
  fs::create_directory(at("theirs"));
  AtomicFile file(at("data/a"));
  file.write("text");
  fs::rename(at("data"), at("moved"));
  fs::create_directory_symlink("theirs", at("data"));
  file.commit();
  EXPECT_TRUE(fs::is_empty(at("theirs")));
  EXPECT_EQ(text(at("moved/a")), "text");
}

TEST_F(AtomicFileTest, WritersAtOnceLeaveOneWholeFile) {
  const auto content = [](int writer) {
    return std::string(100'000, static_cast<char>('a' + writer));
  };
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&, writer] {
      for (int round = 0; round < 5; ++round) {
        write_file_atomically(at("a"), content(writer));
      }
    });
  }
  for (std::thread& writer : writers) {
    writer.join();
  }
  EXPECT_EQ(entries(), 1U);
  EXPECT_THAT(text(at("a")), testing::AnyOf(content(0), content(1), content(2), content(3)));
}

TEST_F(AtomicFileTest, WhatCannotBeWrittenIsNamed) {
  const auto message = [](const fs::path& path) {
    return test::message_of<RuntimeFault>([&] { const AtomicFile file(path); });
  };
  EXPECT_EQ(message(directory_.path()),
            "cannot write " + directory_.path().string() + ": Is a directory");
  EXPECT_EQ(message(at("no/such")),
            "cannot write " + at("no/such").string() + ": No such file or directory");
  fs::create_symlink("b", at("a"));
  fs::create_symlink("a", at("b"));
  EXPECT_THAT(message(at("a")), HasSubstr("Too many levels of symbolic links"));
}

}  // namespace
}  // namespace shardlens
