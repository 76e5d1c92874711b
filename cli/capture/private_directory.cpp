#include "cli/capture/private_directory.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "shardlens-run-";
constexpr const char* kLock = "lock";
constexpr time_t kSecondsUntilLocked = 60;  // far more than from creation to locking

// Whether `path` is such a directory of this user, and no process holds its lock.
bool is_left_behind(const fs::path& path) {
  struct stat info {};
  if (!path.filename().string().starts_with(kPrefix) || ::lstat(path.c_str(), &info) != 0 ||
      !S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() ||
      ::time(nullptr) - info.st_mtime < kSecondsUntilLocked) {
    return false;
  }
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-vararg)
  const int fd = ::open((path / kLock).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return errno == ENOENT;
  }
  const bool free = ::flock(fd, LOCK_EX | LOCK_NB) == 0;
  ::close(fd);
  return free;
}

void remove_those_left_behind(const fs::path& below) {
  std::error_code error;
  for (fs::directory_iterator entry(below, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    if (is_left_behind(entry->path())) {
      fs::remove_all(entry->path(), ignored);
    }
  }
}

}  // namespace

PrivateDirectory::PrivateDirectory() {
  std::error_code error;
  const fs::path temporary = fs::temp_directory_path(error);
  if (error) {
    const char* named = std::getenv("TMPDIR");
    throw RuntimeFault(fmt::format("cannot use the directory for temporary files{}: {}",
                                   named == nullptr ? "" : fmt::format(", TMPDIR={}", named),
                                   error.message()));
  }
  remove_those_left_behind(temporary);
  std::string name = (temporary / (std::string(kPrefix) + "XXXXXX")).string();
  if (::mkdtemp(name.data()) == nullptr) {  // mode 0700
    throw RuntimeFault(fmt::format("cannot create a directory in {}: {}", temporary.string(),
                                   std::strerror(errno)));
  }
  path_ = name;
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-vararg)
  lock_ = ::open((path_ / kLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ >= 0) {
    ::flock(lock_, LOCK_EX | LOCK_NB);
  }
}

PrivateDirectory::~PrivateDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  if (lock_ >= 0) {
    ::close(lock_);
  }
}

}  // namespace shardlens::cli
