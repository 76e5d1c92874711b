#include "core/base/atomic_file.h"

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"

namespace shardlens {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBufferBytes = size_t{1} << 16;
constexpr int kMostLinks = 40;  // the limit of Linux

// Unique also if several processes, or several threads of one process, write the same path.
std::string unique_ending() {
  static std::atomic<unsigned> count = 0;
  return ".tmp" + std::to_string(::getpid()) + "." + std::to_string(count++);
}

// The file or descriptor that a path leads to.
struct Destination {
  fs::path file;                  // the path without symlinks; the file need not exist
  std::optional<int> descriptor;  // a descriptor of this process, if the path names one
  bool special = false;           // `file` is a device, a FIFO, …
};

// Returns N for /dev/fd/N and /proc/self/fd/N (/dev/stdout is a link to the latter). The caller
// duplicates the descriptor: opening a regular file by this name would start at its first byte and
// overwrite what others wrote through the descriptor.
std::optional<int> own_descriptor(const fs::path& path) {
  std::error_code error;
  const fs::path folder = fs::canonical(path.parent_path(), error);
  if (error || folder != fs::canonical("/proc/self/fd", error) || error) {
    return std::nullopt;
  }
  const std::string name = path.filename().string();
  int number = -1;
  const auto [end, failure] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (failure != std::errc() || end != name.data() + name.size() || number < 0) {
    return std::nullopt;
  }
  return number;
}

// Follows symlinks, including one whose target does not exist. Returns 0 or errno.
int find_destination(const fs::path& path, Destination& out) {
  fs::path at = path;
  for (int links = 0; links < kMostLinks; ++links) {
    if (const auto descriptor = own_descriptor(at)) {
      out.descriptor = descriptor;
      return 0;
    }
    out.file = at;
    struct stat info {};
    if (::lstat(at.c_str(), &info) != 0) {
      return errno == ENOENT ? 0 : errno;  // if a folder is missing, open() will fail
    }
    if (S_ISDIR(info.st_mode)) {
      return EISDIR;
    }
    if (!S_ISLNK(info.st_mode)) {
      out.special = !S_ISREG(info.st_mode);
      return 0;
    }
    std::error_code error;
    const fs::path link = fs::read_symlink(at, error);
    if (error) {
      return error.value();
    }
    at = at.parent_path() / link;  // an absolute `link` replaces the folder
  }
  return ELOOP;
}

int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) {
      return errno;
    }
    bytes.remove_prefix(written > 0 ? static_cast<size_t>(written) : 0);
  }
  return 0;
}

}  // namespace

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)) {
  Destination to;
  if (const int reason = find_destination(path_, to); reason != 0) {
    fail(reason);
  }
  if (to.descriptor) {
    fd_ = ::fcntl(*to.descriptor, F_DUPFD_CLOEXEC, 0);
  } else if (to.special) {
    fd_ = ::open(to.file.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC);
  } else {
    target_ = std::move(to.file);
    temporary_ = target_.string() + unique_ending();
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  }
  if (fd_ < 0) {
    fail(errno);
  }
  buffer_.reserve(kBufferBytes);
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::fail(int reason) const {
  throw RuntimeFault("cannot write " + path_.string() + ": " + std::strerror(reason));
}

void AtomicFile::write(std::string_view bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) {
    flush();
  }
  if (bytes.size() < kBufferBytes) {
    buffer_.append(bytes);
  } else if (const int reason = write_all(fd_, bytes); reason != 0) {
    fail(reason);
  }
}

void AtomicFile::flush() {
  const int reason = write_all(fd_, buffer_);
  buffer_.clear();
  if (reason != 0) {
    fail(reason);
  }
}

void AtomicFile::close() {
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) {
    fail(errno);
  }
}

void AtomicFile::commit() {
  flush();
  close();
  if (temporary_.empty()) {
    return;
  }
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    fail(errno);
  }
  temporary_.clear();
}

void write_file_atomically(const fs::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

}  // namespace shardlens
