#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace shardlens::checkpoint {

// A file next to the tensors of a model: config.json or generation_config.json.
struct CompanionFile {
  std::string name;
  std::string text;
};

// Reads such a file of a directory; none if it does not exist. Its text goes into outputs as it is,
// so a symlink must not lead out of the directory: whoever made the directory would decide which of
// the user's files are passed on. Allowed are links of a model in the Hugging Face cache, from
// snapshots/<revision>/ to blobs/.
// Errors: InputError, also if it cannot be read, is no regular file, or is larger than 64 MiB.
[[nodiscard]] std::optional<CompanionFile> read_companion(const std::filesystem::path& directory,
                                                          const std::string& name);

// Both of a directory, those that exist. Errors: InputError.
[[nodiscard]] std::vector<CompanionFile> read_companions(const std::filesystem::path& directory);

}  // namespace shardlens::checkpoint
