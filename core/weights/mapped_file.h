#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace shardlens::models {

// A file that is memory-mapped read-only as a whole; pages are read on first access.
// Errors  InputError with the path and the system's reason.
class MappedFile {
 public:
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  // Pages that lie in `part` of bytes() as a whole no longer count as memory of this process. Their
  // bytes stay readable.
  void release(std::span<const std::byte> part) const;

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

}  // namespace shardlens::models
