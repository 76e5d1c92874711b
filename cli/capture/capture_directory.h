#pragma once

#include <filesystem>

#include "cli/capture/directory_lock.h"

namespace shardlens::cli {

// Makes `directory`, or empties one that holds nothing but an earlier capture; it is the caller's
// as long as the lock lives.
// Errors: UsageError naming the first file that is not of a capture, what is in the way, or the
// process that is writing a capture there.
[[nodiscard]] DirectoryLock prepare_capture_directory(const std::filesystem::path& directory);

// Whether prepare_capture_directory() would take it; throws the same errors and changes nothing.
void check_capture_directory(const std::filesystem::path& directory);

}  // namespace shardlens::cli
