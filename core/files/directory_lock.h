#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/files/descriptor.h"
#include "core/files/output_folder.h"

namespace shardlens {

// A place that one process at a time may write, and the words for messages about it:
// "--save saved: process 47 of node3 is saving a run there; wait for it to end or …".
struct LockedPlace {
  std::filesystem::path file;  // the lock file; its folder must exist
  std::string named;           // "--save saved"
  std::string_view doing;      // "is saving a run there"
  std::string_view otherwise = "choose another directory";
};

// Locks a place for as long as the object lives. The lock is a kernel lock on a file, so a process
// that is killed leaves the file but no lock. On a file system without locks nothing is locked.
// The file has the process id and the host, for the messages of other processes. A file that is not
// empty and has something else is not touched, and a symlink is not followed.
//
// Ownership   the destructor removes the file.
// Errors      UsageError naming place, process and host if another process has the lock;
//             RuntimeFault if the place cannot be written.
class DirectoryLock {
 public:
  enum class Use : uint8_t {
    kAlone,
    kShared,  // one of several processes that write the place together
  };
  explicit DirectoryLock(const LockedPlace& place, Use use = Use::kAlone);
  ~DirectoryLock();
  DirectoryLock(DirectoryLock&& other) noexcept = default;
  DirectoryLock& operator=(DirectoryLock&&) = delete;

  // Whether the file system has locks.
  [[nodiscard]] bool held() const { return held_; }

  // The process that has the lock of a place, as "process 47 of node3"; none if it is free.
  [[nodiscard]] static std::optional<std::string> holder(const std::filesystem::path& file);
  // Throws if another process has the lock, but changes nothing.
  static void check(const LockedPlace& place);

 private:
  OutputFolder folder_;
  std::string name_;
  Descriptor file_;
  bool held_ = false;
};

}  // namespace shardlens
