#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace shardlens::checkpoint {

// A new file whose bytes are on the disk when finish() returns. An existing file is replaced.
//
// Errors  RuntimeFault "cannot write PATH: reason". What was written until then stays.
class DurableFile {
 public:
  explicit DurableFile(std::filesystem::path path);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void finish();

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

void write_durably(const std::filesystem::path& path, std::string_view text);

// Puts the names in a directory on the disk: files that were made, renamed or removed.
// Errors: RuntimeFault.
void sync_directory(const std::filesystem::path& directory);

// Renames a file or directory, durably. Errors: RuntimeFault naming both paths.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace shardlens::checkpoint
