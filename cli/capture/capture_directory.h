#pragma once

#include <filesystem>

#include "cli/capture/directory_lock.h"

namespace shardlens::cli {

// Creates `directory`, or empties it if it contains only an earlier capture. It is locked for the
// caller as long as the lock exists.
// Errors: UsageError if the directory contains a file that is no part of a capture (naming it), if
// it cannot be created, or if another process is writing a capture there (naming the process).
[[nodiscard]] DirectoryLock prepare_capture_directory(const std::filesystem::path& directory);

// Throws the errors of prepare_capture_directory(), but changes nothing.
void check_capture_directory(const std::filesystem::path& directory);

}  // namespace shardlens::cli
