#include "core/files/directory_lock.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"

namespace shardlens {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostText = 255;

enum class Locked : uint8_t { kYes, kNo, kUnsupported };

Locked try_lock(int fd, int operation) {
  while (::flock(fd, operation | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return Locked::kNo;
    }
    if (errno != EINTR) {
      return Locked::kUnsupported;
    }
  }
  return Locked::kYes;
}

std::string this_host() {
  std::array<char, kMostText + 1> name{};
  return ::gethostname(name.data(), kMostText) == 0 ? name.data() : "";
}

std::string text_in(int fd) {
  std::array<char, kMostText + 1> text{};
  const ssize_t size = ::pread(fd, text.data(), kMostText, 0);
  return {text.data(), size > 0 ? static_cast<size_t>(size) : 0};
}

// "process 47 of node3" for the "47 node3\n" that a lock file has; none for anything else.
std::optional<std::string> process_in(std::string_view text) {
  const size_t space = text.find_first_not_of("0123456789");
  const size_t end = text.find('\n');
  if (space == 0 || space >= end || text[space] != ' ' || end + 1 != text.size()) {
    return std::nullopt;
  }
  return fmt::format("process {} of {}", text.substr(0, space),
                     text.substr(space + 1, end - space - 1));
}

// Asks again for a moment: holder() of another process has the lock only while it looks.
Locked try_lock_for_long(int fd, int operation) {
  constexpr int kTries = 10;
  Locked locked = try_lock(fd, operation);
  for (int i = 0; i < kTries && locked == Locked::kNo; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    locked = try_lock(fd, operation);
  }
  return locked;
}

// The process that has locked the file. It writes its name just after it has the lock.
std::string holder_in(int fd) {
  constexpr int kTries = 100;
  std::optional<std::string> found = process_in(text_in(fd));
  for (int i = 0; i < kTries && !found; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    found = process_in(text_in(fd));
  }
  return found.value_or("another process");
}

[[noreturn]] void refuse(const LockedPlace& place, std::string_view holder) {
  throw UsageError(fmt::format("{}: {} {}; wait for it to end or {}", place.named, holder,
                               place.doing, place.otherwise));
}

[[noreturn]] void fail_to_write(const LockedPlace& place, const WriteFault& fault) {
  throw RuntimeFault(fmt::format("{}: cannot be written: {}", place.named, fault.reason()));
}

OutputFolder folder_of(const LockedPlace& place) {
  try {
    return OutputFolder(place.file.parent_path());
  } catch (const WriteFault& fault) {
    fail_to_write(place, fault);
  }
}

FileIdentity identity_of(int fd) {
  struct stat info {};
  ::fstat(fd, &info);
  return FileIdentity(info);
}

}  // namespace

DirectoryLock::DirectoryLock(const LockedPlace& place, Use use)
    : folder_(folder_of(place)), name_(place.file.filename().string()) {
  for (;;) {
    Descriptor file;
    try {
      // Closed in a program that this one starts: a worker that outlives this process for a moment
      // must not keep the lock.
      file = folder_.open_file(name_, O_RDWR | O_CREAT, 0644);
    } catch (const WriteFault& fault) {
      fail_to_write(place, fault);
    }
    const Locked locked = try_lock_for_long(file.get(), use == Use::kAlone ? LOCK_EX : LOCK_SH);
    if (locked == Locked::kNo) {
      refuse(place, holder_in(file.get()));
    }
    // The previous holder may have removed the file in the meantime.
    const auto named = folder_.find(name_);
    if (named && FileIdentity(*named) == identity_of(file.get())) {
      held_ = locked == Locked::kYes;
      file_ = std::move(file);
      break;
    }
  }
  if (const std::string text = text_in(file_.get()); !text.empty() && !process_in(text)) {
    file_.reset();
    throw UsageError(fmt::format("{}: {} is in the way: it is no lock of Shardlens; move it",
                                 place.named, place.file.string()));
  }
  // Only for the message of other processes; if the disk is full, it names no process.
  const std::string text = fmt::format("{} {}\n", ::getpid(), this_host());
  if (::ftruncate(file_.get(), 0) == 0) {
    [[maybe_unused]] const ssize_t written = ::pwrite(file_.get(), text.data(), text.size(), 0);
  }
}

DirectoryLock::~DirectoryLock() {
  // The last process that shares the lock removes the file, under an exclusive lock.
  if (file_.open() && try_lock(file_.get(), LOCK_EX) != Locked::kNo) {
    folder_.remove(name_, identity_of(file_.get()));
  }
}

std::optional<std::string> DirectoryLock::holder(const fs::path& file) {
  const Descriptor opened(
      ::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!opened.open() || try_lock(opened.get(), LOCK_SH) != Locked::kNo) {
    return std::nullopt;
  }
  return holder_in(opened.get());
}

void DirectoryLock::check(const LockedPlace& place) {
  if (const auto process = holder(place.file)) {
    refuse(place, *process);
  }
}

}  // namespace shardlens
