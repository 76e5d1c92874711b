#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "cli/capture/directory_lock.h"
#include "cli/flags/run_options.h"

namespace shardlens::cli {

// Where a command that captures by itself keeps what it captures: a directory of its own that goes
// with this object, or one that the user wants to keep.
// Errors  UsageError naming `flag` for a `wanted` that holds something or that another process
//         writes to; RuntimeFault.
class CaptureFolder {
 public:
  // `wanted`: "" for one of its own.
  CaptureFolder(std::string_view flag, const std::filesystem::path& wanted);
  ~CaptureFolder();
  CaptureFolder(const CaptureFolder&) = delete;
  CaptureFolder& operator=(const CaptureFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  bool keep_;
  std::optional<DirectoryLock> lock_;  // of a kept one
};

// capture(), but what workers print goes to `options.out`.log; of an error its last lines are told.
void capture_logged(const RunOptions& options);

}  // namespace shardlens::cli
