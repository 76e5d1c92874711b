#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace shardlens {

// A file that is written under a temporary name and gets its name with commit(), so that a reader
// never sees half a file. Without commit() nothing is left behind.
//
// A symlink stays, and the file that it leads to is what is written, whether or not that exists
// yet. What is no regular file (a device, a FIFO) and the process's own descriptors (/dev/stdout,
// /dev/fd/63) cannot be replaced: there the bytes go through as they are written.
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

  std::filesystem::path path_;                // as given, for messages
  std::filesystem::path target_, temporary_;  // empty: the bytes go through
  int fd_ = -1;
  std::string buffer_;
};

void write_file_atomically(const std::filesystem::path& path, std::string_view content);

}  // namespace shardlens
