#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace shardlens::cli {

// A directory that this process writes a capture into, for as long as the object lives: a second
// process that means to is refused. The lock is the kernel's, on a file in the directory, so a
// process that is killed leaves the file but no lock. Where the file system has no locks, none is
// held.
//
// Ownership   the destructor removes the file.
// Errors      UsageError naming directory and process if another one holds it.
class DirectoryLock {
 public:
  enum class Use : uint8_t {
    kAlone,
    kShared,  // one of several workers of a run that something else started
  };
  static constexpr std::string_view kFile = "capture.lock";

  // `directory` exists; `flag`, as "--out", begins the messages.
  explicit DirectoryLock(const std::filesystem::path& directory,
                         std::string_view flag = "--out",
                         Use use = Use::kAlone);
  ~DirectoryLock();
  DirectoryLock(DirectoryLock&& other) noexcept;
  DirectoryLock& operator=(DirectoryLock&&) = delete;

  // Fails as the constructor would, and changes nothing.
  static void check(const std::filesystem::path& directory, std::string_view flag = "--out");

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace shardlens::cli
