#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>

#include "core/files/directory_lock.h"

#include "cli/capture/private_directory.h"
#include "cli/flags/run_options.h"

namespace shardlens::cli {

// The directory for the captures of a command that makes captures itself: a temporary one, removed
// with this object, or one chosen by the user, which is kept.
// Errors  UsageError naming `flag` if `wanted` is not empty or another process writes to it;
//         RuntimeFault.
class CaptureFolder {
 public:
  // `wanted`: "" for a temporary directory.
  CaptureFolder(std::string_view flag, const std::filesystem::path& wanted);
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::unique_ptr<PrivateDirectory> temporary_;  // null: the directory is kept
  std::optional<DirectoryLock> lock_;            // for a directory that is kept
};

// capture(), but the workers' output goes to `options.out`.log. An error message contains the last
// lines of it. `longest`: ends a capture that takes longer.
void capture_logged(const RunOptions& options,
                    std::optional<std::chrono::milliseconds> longest = {});

}  // namespace shardlens::cli
