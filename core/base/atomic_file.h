#pragma once

#include <filesystem>
#include <fstream>
#include <string_view>

namespace shardlens {

// A file that is written under a temporary name beside `path` and gets its name with commit(), so
// that a reader never sees half a file. Without commit() nothing is left behind.
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
  [[noreturn]] void fail(const char* fallback);

  std::filesystem::path path_, temporary_;
  std::ofstream out_;
  bool committed_ = false;
};

void write_file_atomically(const std::filesystem::path& path, std::string_view content);

}  // namespace shardlens
