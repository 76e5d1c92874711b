#pragma once

#include <filesystem>
#include <string_view>

namespace shardlens {

// Writes `content` to a temporary name beside `path` and renames it, so that a reader never sees half a file.
// Errors: RuntimeFault naming the path and the system's reason; nothing is left behind.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

}  // namespace shardlens
