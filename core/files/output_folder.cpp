#include "core/files/output_folder.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

namespace shardlens {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDigits = "0123456789abcdef";
constexpr int kFolder = O_PATH | O_DIRECTORY | O_CLOEXEC;

// An entry's name, not a path that leads elsewhere.
bool is_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos;
}

void check_name(const std::string& name) {
  SHARDLENS_CHECK(is_name(name), "'" + name + "' is no name of a file");
}

// A descriptor of the folder that can be read and flushed, which those of O_PATH cannot.
Descriptor readable(int folder) {
  return Descriptor(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

// The names in a folder. Returns 0 or errno.
int read_names(int folder, std::vector<std::string>& out) {
  const int fd = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    return errno;
  }
  const std::unique_ptr<DIR, CloseFolder> entries(::fdopendir(fd));
  if (!entries) {
    const int reason = errno;
    ::close(fd);
    return reason;
  }
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(entries.get());  // NOLINT(concurrency-mt-unsafe)
    if (entry == nullptr) {
      return errno;
    }
    if (std::string name(&entry->d_name[0]); is_name(name)) {
      out.push_back(std::move(name));
    }
  }
}

// Empties a folder of the file system `device`, but for the entry `except`.
bool empty_folder(int folder, dev_t device, const std::string& except) {
  std::vector<std::string> names;
  bool empty = read_names(folder, names) == 0;
  for (const std::string& name : names) {
    struct stat info {};
    if (name == except) {
      continue;
    }
    if (::fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
      empty = empty && errno == ENOENT;
      continue;
    }
    int flags = 0;
    if (S_ISDIR(info.st_mode)) {
      const Descriptor below(::openat(folder, name.c_str(), kFolder | O_NOFOLLOW));
      flags = AT_REMOVEDIR;
      empty = below.open() && ::fstat(below.get(), &info) == 0 && info.st_dev == device &&
              empty_folder(below.get(), device, {}) && empty;
    }
    empty = (::unlinkat(folder, name.c_str(), flags) == 0 || errno == ENOENT) && empty;
  }
  return empty;
}

}  // namespace

WriteFault::WriteFault(const fs::path& path, const std::string& reason)
    : RuntimeFault("cannot write " + path.string() + ": " + reason), reason_(reason) {}

WriteFault::WriteFault(const fs::path& path, int error) : WriteFault(path, std::strerror(error)) {}

bool is_identifier(std::string_view text) {
  return text.size() == kIdentifierDigits &&
         text.find_first_not_of(kDigits) == std::string_view::npos;
}

std::string random_identifier() {
  std::array<unsigned char, 16> bits{};
  size_t filled = 0;
  while (filled < bits.size()) {
    const ssize_t got = ::getrandom(bits.data() + filled, bits.size() - filled, 0);
    if (got < 0 && errno != EINTR) {
      throw RuntimeFault(std::string("cannot get random numbers: ") + std::strerror(errno));
    }
    filled += got > 0 ? static_cast<size_t>(got) : 0;
  }
  std::string text;
  for (const unsigned char byte : bits) {
    text += kDigits[byte >> 4U];
    text += kDigits[byte & 15U];
  }
  return text;
}

OutputFolder::OutputFolder(fs::path path, Descriptor open)
    : path_(std::move(path)), open_(std::make_shared<const Descriptor>(std::move(open))) {
  if (!open_->open()) {
    throw WriteFault(path_, errno);
  }
}

OutputFolder::OutputFolder(const fs::path& path)
    : OutputFolder(path, Descriptor(::open(path.empty() ? "." : path.c_str(), kFolder))) {}

OutputFolder OutputFolder::of(const fs::path& file) {
  try {
    return OutputFolder(file.parent_path());
  } catch (const WriteFault& fault) {
    throw WriteFault(file, fault.reason());
  }
}

OutputFolder OutputFolder::make(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    throw WriteFault(path, error.message());
  }
  return OutputFolder(path);
}

OutputFolder OutputFolder::make_folder(const std::string& name, mode_t mode) const {
  check_name(name);
  if (::mkdirat(descriptor(), name.c_str(), mode) != 0) {
    fail(name, errno);
  }
  return open_folder(name);
}

OutputFolder OutputFolder::open_folder(const std::string& name) const {
  check_name(name);
  return {path_ / name, Descriptor(::openat(descriptor(), name.c_str(), kFolder | O_NOFOLLOW))};
}

OutputFolder OutputFolder::follow(const fs::path& path) const {
  return {path_ / path,
          Descriptor(::openat(descriptor(), path.empty() ? "." : path.c_str(), kFolder))};
}

FileIdentity OutputFolder::identity() const {
  struct stat info {};
  if (::fstat(descriptor(), &info) != 0) {
    throw WriteFault(path_, errno);
  }
  return FileIdentity(info);
}

std::optional<struct stat> OutputFolder::find(const std::string& name) const {
  check_name(name);
  struct stat info {};
  if (::fstatat(descriptor(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) {
    return info;
  }
  if (errno != ENOENT) {
    fail(name, errno);
  }
  return std::nullopt;
}

std::vector<std::string> OutputFolder::names() const {
  std::vector<std::string> out;
  if (const int reason = read_names(descriptor(), out); reason != 0) {
    throw WriteFault(path_, reason);
  }
  return out;
}

Descriptor OutputFolder::open_file(const std::string& name, int flags, mode_t mode) const {
  check_name(name);
  // O_NONBLOCK: opening a FIFO must not wait for its other end. Regular files ignore it.
  constexpr int kSafely = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  Descriptor file(::openat(descriptor(), name.c_str(), flags | kSafely, mode));
  struct stat info {};
  if (!file.open() || ::fstat(file.get(), &info) != 0) {
    fail(name, errno);
  }
  if (!S_ISREG(info.st_mode)) {
    throw WriteFault(path_ / name, "not a regular file");
  }
  return file;
}

std::optional<std::string> OutputFolder::small_file(const std::string& name) const {
  constexpr size_t kMost = size_t{1} << 20;
  const auto found = find(name);
  if (!found || !S_ISREG(found->st_mode) || static_cast<size_t>(found->st_size) >= kMost) {
    return std::nullopt;
  }
  std::string text(kMost, '\0');
  size_t size = 0;
  try {
    const Descriptor file = open_file(name, O_RDONLY);
    while (size < kMost) {
      const ssize_t got = ::read(file.get(), text.data() + size, kMost - size);
      if (got < 0) {
        return std::nullopt;
      }
      if (got == 0) {
        text.resize(size);
        return text;
      }
      size += static_cast<size_t>(got);
    }
  } catch (const WriteFault&) {  // it may not be read
  }
  return std::nullopt;
}

Descriptor OutputFolder::open_special(const std::string& name) const {
  check_name(name);
  // With O_NONBLOCK, a FIFO without a reader is ENXIO; otherwise opening would wait forever.
  constexpr int kSpecial = O_WRONLY | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC;
  constexpr auto kPause = std::chrono::milliseconds(5);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  const auto open = [&] {
    return Descriptor(::openat(descriptor(), name.c_str(), kSpecial | O_NONBLOCK));
  };
  Descriptor file = open();
  while (!file.open() && errno == ENXIO && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(kPause);
    file = open();
  }
  if (!file.open() && errno == ENXIO) {
    throw WriteFault(path_ / name, "no one read it within 10 s");
  }
  struct stat info {};
  if (!file.open() || ::fstat(file.get(), &info) != 0 ||
      ::fcntl(file.get(), F_SETFL, O_WRONLY) != 0) {
    fail(name, errno);
  }
  if (S_ISREG(info.st_mode)) {
    throw WriteFault(path_ / name, "another file was put there meanwhile");
  }
  return file;
}

void OutputFolder::rename(const std::string& from, const std::string& to) const {
  check_name(from);
  check_name(to);
  if (::renameat(descriptor(), from.c_str(), descriptor(), to.c_str()) != 0) {
    fail(to, errno);
  }
}

void OutputFolder::rename_to_new(const std::string& from, const std::string& to) const {
  check_name(from);
  check_name(to);
  if (::renameat2(descriptor(), from.c_str(), descriptor(), to.c_str(), RENAME_NOREPLACE) == 0) {
    return;
  }
  if (errno != EINVAL) {
    fail(to, errno);
  }
  // A file system without RENAME_NOREPLACE. What is made between the two calls is lost only if it
  // is a file, or a folder that is still empty.
  if (find(to)) {
    fail(to, EEXIST);
  }
  rename(from, to);
}

void OutputFolder::exchange(const std::string& first, const std::string& second) const {
  check_name(first);
  check_name(second);
  if (::renameat2(descriptor(), first.c_str(), descriptor(), second.c_str(), RENAME_EXCHANGE) !=
      0) {
    fail(second, errno);
  }
}

bool OutputFolder::remove(const std::string& name, const FileIdentity& made) const noexcept {
  struct stat info {};
  if (!is_name(name)) {
    errno = EINVAL;
    return false;
  }
  if (::fstatat(descriptor(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
    return errno == ENOENT;
  }
  if (FileIdentity(info) != made) {
    errno = EBUSY;
    return false;
  }
  return ::unlinkat(descriptor(), name.c_str(), S_ISDIR(info.st_mode) ? AT_REMOVEDIR : 0) == 0;
}

bool OutputFolder::clear(const std::string& except) const noexcept {
  try {
    return empty_folder(descriptor(), identity().device, except);
  } catch (const std::exception&) {  // no memory for a name
    return false;
  }
}

void OutputFolder::sync() const {
  const Descriptor folder = readable(descriptor());
  if (!folder.open()) {
    if (errno != EACCES) {  // a folder in which one may write but not read
      throw WriteFault(path_, errno);
    }
    return;
  }
  // Some file systems cannot do this for folders; they say EINVAL.
  if (::fsync(folder.get()) != 0 && errno != EINVAL) {
    throw WriteFault(path_, errno);
  }
}

void OutputFolder::fail(const std::string& name, int error) const {
  throw WriteFault(path_ / name, error);
}

}  // namespace shardlens
