#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "profiler/trace/bytes/progress.h"

namespace shardlens::trace {

// The text of a file, read sequentially; a compressed file is inflated.
//
// Threads  not thread-safe: one reader.
class ByteSource {
 public:
  ByteSource() = default;
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;
  virtual ~ByteSource() = default;

  // Reads up to `size` bytes into `out` and returns how many; 0 only at the end. Errors: InputError
  // if the file cannot be read, or if its compressed data is damaged or cut off; the message names
  // the byte in the compressed file.
  virtual size_t read(char* out, size_t size) = 0;
};

// Opens a file. Gzip (also with several members) and zstd are recognized by their first bytes, not
// by the file's name. Long compressed files are inflated on another thread, ahead of the reader
// (read_ahead.h). Errors: InputError if there is no such file or it is a directory, cannot be
// opened or is empty; those of Progress. `progress` may be null; otherwise it must outlive the
// source.
[[nodiscard]] std::unique_ptr<ByteSource> open_source(const std::filesystem::path& path,
                                                      Progress* progress = nullptr);

// Reads the bytes of a file that is in memory, compressed or not, as open_source() reads a file;
// `bytes` must outlive the source. For tests and fuzzing.
[[nodiscard]] std::unique_ptr<ByteSource> open_source(std::string_view bytes,
                                                      const std::string& name);

// Reads the first bytes of a source, `size` at most, into `head` and returns a source of all bytes.
[[nodiscard]] std::unique_ptr<ByteSource> with_head(std::unique_ptr<ByteSource> source,
                                                    size_t size,
                                                    std::string& head);

// Whether a file that begins with these bytes, at least four, is inflated.
[[nodiscard]] bool is_compressed(std::string_view head);

// Larger traces cannot be analyzed in the memory of a usual machine.
inline constexpr uint64_t kLargestTrace = uint64_t{16} << 30;

// Returns `text` unchanged; `text` must outlive the source.
[[nodiscard]] std::unique_ptr<ByteSource> source_of(std::string_view text);

[[nodiscard]] std::string read_all(ByteSource& source);

}  // namespace shardlens::trace
