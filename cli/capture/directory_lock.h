#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace shardlens::cli {

// Locks a directory that this process writes a capture to, for as long as the object lives. The
// lock is a kernel lock on a file in the directory, so a process that is killed leaves the file but
// no lock. On a file system without locks nothing is locked.
//
// Ownership   the destructor removes the file.
// Errors      UsageError naming directory and process if another process has the lock.
class DirectoryLock {
 public:
  enum class Use : uint8_t {
    kAlone,
    kShared,  // one of several workers that were not started by `shardlens capture`
  };
  static constexpr std::string_view kFile = "capture.lock";

  // `directory` must exist. Messages begin with `flag`, such as "--out".
  explicit DirectoryLock(const std::filesystem::path& directory,
                         std::string_view flag = "--out",
                         Use use = Use::kAlone);
  ~DirectoryLock();
  DirectoryLock(DirectoryLock&& other) noexcept;
  DirectoryLock& operator=(DirectoryLock&&) = delete;

  // Throws the errors of the constructor, but changes nothing.
  static void check(const std::filesystem::path& directory, std::string_view flag = "--out");

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace shardlens::cli
