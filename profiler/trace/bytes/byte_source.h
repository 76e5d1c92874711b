#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "profiler/trace/bytes/progress.h"

namespace shardlens::trace {

// A file's text from front to back, inflated where it is compressed.
//
// Threads  one reader.
class ByteSource {
 public:
  ByteSource() = default;
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;
  virtual ~ByteSource() = default;

  // Puts up to `size` bytes at `out`; 0 only at the end. Errors: InputError for a file that cannot
  // be read, or ends within or is damaged in its compression, with the byte of the compressed file.
  virtual size_t read(char* out, size_t size) = 0;
};

// Gzip (also several members) and zstd are told by their first bytes, not by name, and are inflated
// ahead of the reader where they are long (read_ahead.h). Errors: InputError for what is no file,
// cannot be opened or is empty; those of Progress. `progress` may be null; else it must outlive
// the source.
[[nodiscard]] std::unique_ptr<ByteSource> open_source(const std::filesystem::path& path,
                                                      Progress* progress = nullptr);

// Bytes of a compressed file in memory, as open_source() reads them from a file; `bytes` must
// outlive it. For tests and fuzzing.
[[nodiscard]] std::unique_ptr<ByteSource> open_source(std::string_view bytes,
                                                      const std::string& name);

// `text` as it stands, which must outlive it.
[[nodiscard]] std::unique_ptr<ByteSource> source_of(std::string_view text);

[[nodiscard]] std::string read_all(ByteSource& source);

}  // namespace shardlens::trace
