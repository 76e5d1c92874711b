#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "profiler/trace/bytes/byte_source.h"

namespace simdjson::internal {
class dom_parser_implementation;
}

namespace shardlens::trace {

// A JSON text of any length, seen through a window that slides over it. simdjson's first stage
// finds the tokens of a window (brackets, commas, colons and the first byte of each string, number
// and word) and checks that the text is UTF-8.
//
// Layout      a window ends outside strings, but otherwise anywhere. A value that continues after
//             the window is read again after advance().
// Errors      InputError with the byte of the (inflated) text: not UTF-8, a control character in a
//             string, a text that ends within a string, or one piece larger than kMaxPieceBytes.
class TokenWindow {
 public:
  static constexpr size_t kWindowBytes = size_t{1} << 18;
  // Largest element of traceEvents, or other top-level value.
  static constexpr size_t kMaxPieceBytes = size_t{256} << 20;

  TokenWindow(ByteSource& source, std::string name, size_t window_bytes = kWindowBytes);
  TokenWindow(const TokenWindow&) = delete;
  TokenWindow& operator=(const TokenWindow&) = delete;
  ~TokenWindow();

  // text()[tokens()[i]] is the first byte of token i; token count() is a sentinel whose byte is
  // '\0'. At least kPadding bytes follow the text.
  static constexpr size_t kPadding = 64;
  [[nodiscard]] const char* text() const { return buffer_.data(); }
  [[nodiscard]] const uint32_t* tokens() const { return tokens_; }
  [[nodiscard]] size_t count() const { return count_; }
  // Position of text() in the whole text.
  [[nodiscard]] uint64_t offset() const { return offset_; }
  // Whether the text ends with this window.
  [[nodiscard]] bool last() const { return ended_ && cut_ == filled_; }
  [[nodiscard]] uint64_t end() const { return offset_ + cut_; }

  // Drops everything before token `keep` and reads more text; not after last().
  void advance(size_t keep);

 private:
  void fill();
  void find_tokens();
  size_t cut_after_line() const;
  void index(size_t size);
  [[noreturn]] void fail(uint64_t byte, const std::string& message) const;

  ByteSource& source_;
  std::string name_;
  std::unique_ptr<simdjson::internal::dom_parser_implementation> stage1_;
  std::vector<char> buffer_;
  size_t capacity_;      // room for text in buffer_
  size_t filled_ = 0;    // bytes read
  size_t cut_ = 0;       // bytes in the window
  char after_cut_ = 0;   // the byte that the sentinel replaced
  bool ended_ = false;   // the source has ended
  bool torn_ = false;    // the text ends in a string
  bool closed_ = false;  // the last index() ended outside strings
  uint64_t offset_ = 0;
  uint32_t sentinel_ = 0;  // for a window without tokens
  const uint32_t* tokens_ = nullptr;
  size_t count_ = 0;
};

}  // namespace shardlens::trace
