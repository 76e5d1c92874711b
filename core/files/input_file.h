#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace shardlens {

// What a reader expects of a file. Every file that is read is opened by InputFile, so that no input
// can keep a command waiting or fill its memory.
struct InputLimits {
  uint64_t most_bytes;
  bool pipes = false;                    // a pipe may be read too; for files that the user names
  std::string_view expected = "a file";  // "a JSON file", for messages
  std::chrono::milliseconds wait = std::chrono::seconds(10);  // for the next bytes of a pipe
};

// A regular file, or a pipe with a writer, opened for reading from the beginning to the end.
//
// A directory, device or socket is refused without being opened. The size is checked when the file
// is opened and again while it is read, because it may grow, and files of /proc have no size.
//
// Ownership  the descriptor; release() gives it to the caller.
// Threads    not thread-safe.
// Errors     InputError that names the path: the file cannot be opened or read, is of another kind
//            or too large, or nothing was written into the pipe for `limits.wait`.
class InputFile {
 public:
  InputFile(std::filesystem::path path, const InputLimits& limits);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // Reads up to `size` bytes into `out` and returns how many; 0 only at the end.
  size_t read(char* out, size_t size);

  [[nodiscard]] uint64_t size() const { return size_; }  // 0 for a pipe
  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] int release();  // without limits from here on

 private:
  [[noreturn]] void fail(const std::string& what) const;
  void require_size(uint64_t bytes) const;
  void wait_for_bytes() const;

  std::filesystem::path path_;
  InputLimits limits_;
  int descriptor_ = -1;
  uint64_t size_ = 0, read_ = 0;
};

// A descriptor of the file, or -1 where InputFile throws; for readers to whom a bad file is none.
[[nodiscard]] int try_open_input(const std::filesystem::path& path, const InputLimits& limits);

// The whole content of a file.
[[nodiscard]] std::string read_input(const std::filesystem::path& path, const InputLimits& limits);

// The lines of a file, without their ends.
class InputLines {
 public:
  InputLines(const std::filesystem::path& path, const InputLimits& limits);

  // The next line, or false at the end. Errors: InputError also for a line of more than 16 MiB.
  bool next(std::string& line);
  // Whether the last line had an end.
  [[nodiscard]] bool ended() const { return ended_; }

 private:
  std::filesystem::path path_;
  InputFile file_;
  std::string block_;  // was read, but not yet returned from `at_` on
  size_t at_ = 0;
  int64_t number_ = 0;
  bool ended_ = true;
};

// Whether a directory contains this file, which the user did not name.
//
// Errors  InputError if it is there, but is no regular file or cannot be reached.
[[nodiscard]] bool has_file(const std::filesystem::path& path);

// Whether the file is reached from its directory by a link that leads elsewhere. Such a file may be
// read, but not copied into an output, which may be given to others. A link to ../../blobs stays
// inside: so the cache of Hugging Face is laid out.
[[nodiscard]] bool leads_out_of_directory(const std::filesystem::path& file);

}  // namespace shardlens
