#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace shardlens {

// A file that is written under a temporary name. commit() renames it to its final name, so that a
// reader never sees half a file. Without commit() the temporary file is removed.
//
// If the path is a symlink, the link stays and its target is written, whether or not the target
// exists yet. Devices, FIFOs and the process's own descriptors (/dev/stdout, /dev/fd/63) cannot be
// replaced: the bytes are written to them directly.
//
// Errors  RuntimeFault naming the path and the system's reason.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();
  void write(std::string_view bytes);
  void commit();

 private:
  [[noreturn]] void fail(int reason) const;
  void flush();
  void close();

  std::filesystem::path path_;                // as passed in, for messages
  std::filesystem::path target_, temporary_;  // empty: the bytes are written directly
  int fd_ = -1;
  std::string buffer_;
};

void write_file_atomically(const std::filesystem::path& path, std::string_view content);

}  // namespace shardlens
