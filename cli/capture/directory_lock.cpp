#include "cli/capture/directory_lock.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostText = 255;
// O_CLOEXEC: a worker that outlives this process for a moment must not keep the lock. O_NONBLOCK:
// in the place of the file there may be a pipe.
constexpr int kLockFlags = O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

// Whether the lock was acquired; always true on a file system without locks.
bool try_lock(int fd, int operation) {
  while (::flock(fd, operation | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return false;
    }
    if (errno != EINTR) {
      return true;
    }
  }
  return true;
}

std::string host() {
  std::array<char, kMostText + 1> name{};
  return ::gethostname(name.data(), kMostText) == 0 ? name.data() : "";
}

// The process that has the lock, from the "PID HOST" that it wrote.
std::string holder(int fd) {
  std::array<char, kMostText + 1> text{};
  const ssize_t size = ::pread(fd, text.data(), kMostText, 0);
  std::string_view line(text.data(), size > 0 ? static_cast<size_t>(size) : 0);
  line = line.substr(0, line.find('\n'));
  const size_t space = line.find(' ');
  if (line.empty() || space == std::string_view::npos) {
    return "another process";
  }
  const std::string_view where = line.substr(space + 1);
  return fmt::format("process {}{}", line.substr(0, space),
                     where == host() ? "" : fmt::format(" of {}", where));
}

[[noreturn]] void refuse(std::string_view flag, const fs::path& directory, int fd) {
  const std::string who = holder(fd);
  ::close(fd);
  throw UsageError(fmt::format(
      "{} {}: {} is writing a capture there; wait for it to end or choose another directory", flag,
      directory.string(), who));
}

// Whether `path` is still this file: the previous holder may have removed it in the meantime.
bool is_current(int fd, const fs::path& path) {
  struct stat held {};
  struct stat named {};
  return ::fstat(fd, &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
         held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

}  // namespace

DirectoryLock::DirectoryLock(const fs::path& directory, std::string_view flag, Use use)
    : path_(directory / kFile) {
  const int operation = use == Use::kAlone ? LOCK_EX : LOCK_SH;
  for (;;) {
    const int fd = ::open(path_.c_str(), kLockFlags | O_RDWR | O_CREAT, 0644);
    if (fd < 0) {
      throw UsageError(fmt::format("{} {}: cannot be written: {}", flag, directory.string(),
                                   std::strerror(errno)));
    }
    if (!try_lock(fd, operation)) {
      refuse(flag, directory, fd);
    }
    if (is_current(fd, path_)) {
      fd_ = fd;
      break;
    }
    ::close(fd);
  }
  // Only for the message of other processes; if the disk is full, it names no process.
  const std::string text = fmt::format("{} {}\n", ::getpid(), host());
  if (::ftruncate(fd_, 0) == 0) {
    [[maybe_unused]] const ssize_t written = ::pwrite(fd_, text.data(), text.size(), 0);
  }
}

DirectoryLock::DirectoryLock(DirectoryLock&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

DirectoryLock::~DirectoryLock() {
  if (fd_ < 0) {
    return;
  }
  // The last process that shares the lock removes the file, under an exclusive lock.
  if (try_lock(fd_, LOCK_EX) && is_current(fd_, path_)) {
    ::unlink(path_.c_str());
  }
  ::close(fd_);
}

void DirectoryLock::check(const fs::path& directory, std::string_view flag) {
  const int fd = ::open((directory / kFile).c_str(), kLockFlags | O_RDONLY);
  if (fd < 0) {
    return;
  }
  if (!try_lock(fd, LOCK_SH)) {
    refuse(flag, directory, fd);
  }
  ::close(fd);
}

}  // namespace shardlens::cli
