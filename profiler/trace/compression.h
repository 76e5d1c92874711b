#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace shardlens::trace {

[[nodiscard]] std::string gzip(std::string_view content);

// Bytes of a file, followed by at least `kPadding` zero bytes that simdjson may read.
class LoadedText {
 public:
  static constexpr size_t kPadding = 64;
  [[nodiscard]] std::string_view view() const { return {data_.get(), size_}; }
  [[nodiscard]] size_t capacity() const { return capacity_; }

 private:
  friend LoadedText load_text(const std::filesystem::path& path);
  friend class TextBuilder;
  struct Free {
    void operator()(char* data) const { std::free(data); }  // NOLINT: realloc'ed
  };
  std::unique_ptr<char, Free> data_;
  size_t size_ = 0, capacity_ = 0;
};

// Largest text that is read, a limit of simdjson's 32-bit offsets.
inline constexpr size_t kMaxTextBytes = 0xffffffffU - LoadedText::kPadding;

// The file's text; gzip (also several members) and zstd are told by their first bytes, not by name.
// Errors: InputError for a file that cannot be opened, is empty, is no file, ends within or is
// damaged in its compression, or is larger than kMaxTextBytes when inflated.
[[nodiscard]] LoadedText load_text(const std::filesystem::path& path);

}  // namespace shardlens::trace
