// Each system call of a file that is written fails once, or is the last of its process.

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/files/atomic_file.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace {

enum class Fault { kError, kShortWrite, kKill };

// The fault that happens at the `countdown`-th of these calls from now on.
struct Planned {
  Fault fault = Fault::kError;
  int countdown = -1;
  bool happened = false;

  bool now() {
    if (countdown < 0 || --countdown >= 0) {
      return false;
    }
    happened = true;
    if (fault == Fault::kKill) {
      ::raise(SIGKILL);
    }
    return true;
  }
  // For calls other than write().
  bool fails() {
    const bool fails = now() && fault == Fault::kError;
    errno = fails ? ENOSPC : errno;
    return fails;
  }
};
Planned planned;  // of this process

}  // namespace

// The program's definitions take precedence over those of the C library.
extern "C" {
ssize_t write(int fd, const void* data, size_t size) {
  if (planned.now()) {
    const long half = size > 1 ? ::syscall(SYS_write, fd, data, size / 2) : 0;
    if (planned.fault == Fault::kShortWrite) {
      return half;
    }
    errno = ENOSPC;
    return -1;
  }
  return ::syscall(SYS_write, fd, data, size);
}
int openat(int folder, const char* path, int flags, ...) {  // NOLINT(cert-dcl50-cpp)
  va_list arguments;
  va_start(arguments, flags);
  const auto mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return planned.fails() ? -1 : static_cast<int>(::syscall(SYS_openat, folder, path, flags, mode));
}
int fsync(int fd) {
  return planned.fails() ? -1 : static_cast<int>(::syscall(SYS_fsync, fd));
}
int fchmod(int fd, mode_t mode) noexcept {
  return planned.fails() ? -1 : static_cast<int>(::syscall(SYS_fchmod, fd, mode));
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  return planned.fails()
             ? -1
             : static_cast<int>(::syscall(SYS_renameat, from_folder, from, to_folder, to));
}
}

namespace shardlens {
namespace {

namespace fs = std::filesystem;
using testing::AnyOf;

class OutputFaultsTest : public testing::Test {
 protected:
  [[nodiscard]] fs::path path() const { return directory_.path() / "a"; }
  void SetUp() override {
    std::ofstream(path()) << before_;
    fs::permissions(path(), fs::perms(0640));
  }
  void TearDown() override { planned = {}; }
  [[nodiscard]] std::string text() const {
    std::ifstream in(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  [[nodiscard]] auto entries() const {
    return std::distance(fs::directory_iterator(directory_.path()), {});
  }
  void write() const { write_file_atomically(path(), after_); }

  test::TemporaryDirectory directory_;
  const std::string before_ = "before", after_ = std::string(150'000, 'x');
};

TEST_F(OutputFaultsTest, AnErrorLeavesTheOldFileOrTheNewAndNothingElse) {
  int faults = 0;
  for (bool happened = true; happened; ++faults) {
    SetUp();
    planned = {Fault::kError, faults, false};
    const std::string message = test::message_of<RuntimeFault>([this] { write(); });
    happened = planned.happened;
    planned = {};
    EXPECT_EQ(message, happened ? "cannot write " + path().string() + ": No space left on device"
                                : "accepted");
    EXPECT_THAT(text(), AnyOf(before_, after_));
    EXPECT_EQ(entries(), 1);
    EXPECT_EQ(fs::status(path()).permissions(), fs::perms(0640));
  }
  EXPECT_GE(faults, 8);  // two opens, a write, the mode, two flushes, the name, and no fault
}

TEST_F(OutputFaultsTest, AKilledProcessLeavesTheOldFileOrTheNew) {
  int old = 0;
  int changed = 0;
  for (bool killed = true; killed;) {
    SetUp();
    const pid_t child = ::fork();
    if (child == 0) {
      planned = {Fault::kKill, old + changed, false};
      write();
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    killed = WIFSIGNALED(status);
    (text() == before_ ? old : changed) += 1;
    EXPECT_THAT(text(), AnyOf(before_, after_));
    write();  // what it left does not hinder the next one
    EXPECT_EQ(text(), after_);
  }
  EXPECT_GE(old, 5);      // at an open, a write, the mode, a flush and the name
  EXPECT_GE(changed, 3);  // at the open and the flush of the folder, and without a fault
}

TEST_F(OutputFaultsTest, AShortWriteGoesOn) {
  for (int call = 0; call < 12; ++call) {
    SetUp();
    planned = {Fault::kShortWrite, call, false};
    write();
    planned = {};
    EXPECT_EQ(text(), after_);
  }
}

TEST_F(OutputFaultsTest, AReadOnlyFolderIsNamed) {
  fs::permissions(directory_.path(), fs::perms(0755));
  fs::permissions(path(), fs::perms(0666));
  const pid_t child = ::fork();
  if (child == 0) {
    // For root there is no read-only folder.
    constexpr uid_t kOther = 65534;
    bool right = ::geteuid() != 0 || (::setgid(kOther) == 0 && ::setuid(kOther) == 0);
    right = right && ::chmod(directory_.path().c_str(), 0555) == (::geteuid() == kOther ? -1 : 0);
    right = right && test::message_of<RuntimeFault>([this] { write(); }) ==
                         "cannot write " + path().string() + ": Permission denied";
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  fs::permissions(directory_.path(), fs::perms(0755));
  EXPECT_EQ(text(), before_);
  EXPECT_EQ(entries(), 1);
}

TEST_F(OutputFaultsTest, ProcessesAtOnceLeaveOneWholeFile) {
  constexpr int kProcesses = 3;
  for (int process = 0; process < kProcesses; ++process) {
    if (::fork() == 0) {
      for (int round = 0; round < 5; ++round) {
        write_file_atomically(path(), std::string(100'000, static_cast<char>('a' + process)));
      }
      ::_exit(0);
    }
  }
  for (int process = 0; process < kProcesses; ++process) {
    int status = 0;
    ASSERT_GT(::wait(&status), 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(text(), std::string(100'000, text().front()));
  EXPECT_THAT(text().front(), AnyOf('a', 'b', 'c'));
  EXPECT_EQ(entries(), 1);
}

}  // namespace
}  // namespace shardlens
