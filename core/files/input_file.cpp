#include "core/files/input_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"

namespace shardlens {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBlock = size_t{1} << 16;
constexpr size_t kLongestLine = size_t{16} << 20;

std::string_view kind_of(mode_t mode) {
  constexpr std::array<std::pair<mode_t, std::string_view>, 5> kKinds{{{S_IFDIR, "a directory"},
                                                                       {S_IFIFO, "a pipe"},
                                                                       {S_IFSOCK, "a socket"},
                                                                       {S_IFCHR, "a device"},
                                                                       {S_IFBLK, "a device"}}};
  const auto* const found = std::find_if(kKinds.begin(), kKinds.end(), [mode](const auto& kind) {
    return kind.first == (mode & S_IFMT);
  });
  return found == kKinds.end() ? "no regular file" : found->second;
}

// "64 MiB", "3 bytes"
std::string in_words(uint64_t bytes) {
  constexpr std::array<std::pair<int, const char*>, 4> kUnits{
      {{40, "TiB"}, {30, "GiB"}, {20, "MiB"}, {10, "KiB"}}};
  for (const auto& [shift, name] : kUnits) {
    if (bytes >> shift != 0 && bytes >> shift << shift == bytes) {
      return fmt::format("{} {}", bytes >> shift, name);
    }
  }
  return fmt::format("{} bytes", bytes);
}

}  // namespace

InputFile::InputFile(fs::path path, const InputLimits& limits)
    : path_(std::move(path)), limits_(limits) {
  struct stat info {};
  const auto require_kind = [&] {
    if (!S_ISREG(info.st_mode) && !(limits_.pipes && S_ISFIFO(info.st_mode))) {
      fail(fmt::format("is {}, expected {}", kind_of(info.st_mode), limits_.expected));
    }
  };
  // Before opening, because to open a device may have effects; and after, because the file may have
  // been replaced.
  if (::stat(path_.c_str(), &info) != 0) {
    fail(errno == ENOENT ? "no such file"
                         : fmt::format("cannot be read: {}", std::strerror(errno)));
  }
  require_kind();
  // O_NONBLOCK: to open a pipe must not wait for a writer.
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-vararg)
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor_ < 0) {
    fail(fmt::format("cannot be read: {}", std::strerror(errno)));
  }
  try {
    if (::fstat(descriptor_, &info) != 0) {
      fail(fmt::format("cannot be read: {}", std::strerror(errno)));
    }
    require_kind();
    if (S_ISFIFO(info.st_mode)) {
      wait_for_bytes();  // from here on, no bytes and no writer is the end
    } else {
      size_ = static_cast<uint64_t>(info.st_size);
      require_size(size_);
    }
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

void InputFile::fail(const std::string& what) const {
  throw InputError(path_.string(), what);
}

void InputFile::require_size(uint64_t bytes) const {
  if (bytes > limits_.most_bytes) {
    fail(fmt::format("is larger than {}, expected {}", in_words(limits_.most_bytes),
                     limits_.expected));
  }
}

void InputFile::wait_for_bytes() const {
  pollfd waits{.fd = descriptor_, .events = POLLIN, .revents = 0};
  const auto end = std::chrono::steady_clock::now() + limits_.wait;
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    const int ready = ::poll(&waits, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (ready > 0) {
      return;
    }
    if (ready == 0 || errno != EINTR) {
      fail(fmt::format("is a pipe into which nothing was written for {} s",
                       std::chrono::duration<double>(limits_.wait).count()));
    }
  }
}

size_t InputFile::read(char* out, size_t size) {
  while (true) {
    const ssize_t got = ::read(descriptor_, out, size);
    if (got >= 0) {
      read_ += static_cast<uint64_t>(got);
      require_size(read_);
      return static_cast<size_t>(got);
    }
    if (errno == EAGAIN) {
      wait_for_bytes();
    } else if (errno != EINTR) {
      fail(fmt::format("cannot be read: {}", std::strerror(errno)));
    }
  }
}

int InputFile::release() {
  return std::exchange(descriptor_, -1);
}

int try_open_input(const fs::path& path, const InputLimits& limits) {
  try {
    return InputFile(path, limits).release();
  } catch (const InputError&) {
    return -1;
  }
}

std::string read_input(const fs::path& path, const InputLimits& limits) {
  InputFile file(path, limits);
  std::string text;
  std::string block(kBlock, '\0');
  for (size_t got = 1; got != 0;) {
    got = file.read(block.data(), block.size());
    text.append(block, 0, got);
  }
  return text;
}

InputLines::InputLines(const fs::path& path, const InputLimits& limits)
    : path_(path), file_(path, limits) {}

bool InputLines::next(std::string& line) {
  line.clear();
  ++number_;
  while (true) {
    const size_t end = block_.find('\n', at_);
    line.append(block_, at_, end - at_);
    if (line.size() > kLongestLine) {
      throw InputError(path_.string(),
                       fmt::format("line {} is longer than {}", number_, in_words(kLongestLine)));
    }
    if (end != std::string::npos) {
      at_ = end + 1;
      ended_ = true;
      return true;
    }
    block_.resize(kBlock);
    block_.resize(file_.read(block_.data(), kBlock));
    at_ = 0;
    if (block_.empty()) {
      ended_ = ended_ && line.empty();
      return !line.empty();
    }
  }
}

bool has_file(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG) {
      return false;
    }
    throw InputError(path.string(), fmt::format("cannot be read: {}", std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) {
    throw InputError(path.string(), fmt::format("is {}, expected a file", kind_of(info.st_mode)));
  }
  return true;
}

bool leads_out_of_directory(const fs::path& file) {
  std::error_code error;
  const fs::path folder = fs::canonical(file.has_parent_path() ? file.parent_path() : ".", error);
  const fs::path target = error ? fs::path() : fs::canonical(file, error);
  if (error) {
    return false;  // there is nothing to copy
  }
  const auto is_below = [&target](const fs::path& above) {
    return std::mismatch(above.begin(), above.end(), target.begin(), target.end()).first ==
           above.end();
  };
  const fs::path snapshots = folder.parent_path();
  return !is_below(folder) &&
         !(snapshots.filename() == "snapshots" && is_below(snapshots.parent_path() / "blobs"));
}

}  // namespace shardlens
