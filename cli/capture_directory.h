#pragma once

#include <filesystem>

namespace shardlens::cli {

// Makes `directory`, or empties one that holds nothing but an earlier capture.
// Errors: UsageError naming the first file that is not of a capture, or what is in the way.
void prepare_capture_directory(const std::filesystem::path& directory);

// Whether prepare_capture_directory() would take it; throws the same errors and changes nothing.
void check_capture_directory(const std::filesystem::path& directory);

}  // namespace shardlens::cli
