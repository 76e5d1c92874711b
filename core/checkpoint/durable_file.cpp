#include "core/checkpoint/durable_file.h"

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "core/base/error.h"

namespace shardlens::checkpoint {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_write(const fs::path& path, int reason) {
  throw RuntimeFault("cannot write " + path.string() + ": " + std::strerror(reason));
}

}  // namespace

DurableFile::DurableFile(fs::path path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) {
    fail_write(path_, errno);
  }
}

DurableFile::~DurableFile() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

void DurableFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) {
      fail_write(path_, errno);
    }
    bytes = bytes.subspan(written > 0 ? static_cast<size_t>(written) : 0);
  }
}

void DurableFile::finish() {
  if (::fsync(fd_) != 0) {
    fail_write(path_, errno);
  }
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) {
    fail_write(path_, errno);
  }
}

void write_durably(const fs::path& path, std::string_view text) {
  DurableFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.finish();
}

void sync_directory(const fs::path& directory) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    fail_write(directory, errno);
  }
  // Some file systems cannot do this for directories; they say EINVAL.
  const int reason = ::fsync(fd) != 0 && errno != EINVAL ? errno : 0;
  ::close(fd);
  if (reason != 0) {
    fail_write(directory, reason);
  }
}

void rename_durably(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw RuntimeFault("cannot rename " + from.string() + " to " + to.string() + ": " +
                       std::strerror(errno));
  }
  sync_directory(to.has_parent_path() ? to.parent_path() : fs::path("."));
}

}  // namespace shardlens::checkpoint
