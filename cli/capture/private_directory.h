#pragma once

#include <filesystem>

namespace shardlens::cli {

// A directory for temporary files that only this user can access, removed by the destructor. The
// lock of a file in it says that its process lives: directories of this user whose process was
// killed are removed when the next one is created.
//
// Errors  RuntimeFault if no directory can be created.
class PrivateDirectory {
 public:
  PrivateDirectory();
  ~PrivateDirectory();
  PrivateDirectory(const PrivateDirectory&) = delete;
  PrivateDirectory& operator=(const PrivateDirectory&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int lock_ = -1;
};

}  // namespace shardlens::cli
