#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct isal_zstream;

namespace shardlens::trace {

// Takes a text piece by piece. What it throws passes through to the caller that supplies the
// pieces.
using TextOutput = std::function<void(std::string_view)>;

// Compresses a text of any length with little memory.
class GzipEncoder {
 public:
  explicit GzipEncoder(TextOutput out);  // receives the compressed bytes
  GzipEncoder(const GzipEncoder&) = delete;
  GzipEncoder& operator=(const GzipEncoder&) = delete;
  ~GzipEncoder();
  void write(std::string_view text);
  void finish();  // call once, at the end

 private:
  void deflate(std::string_view text, bool last);

  TextOutput out_;
  std::unique_ptr<isal_zstream> stream_;
  std::vector<uint8_t> work_, chunk_;
};

[[nodiscard]] std::string gzip(std::string_view content);

}  // namespace shardlens::trace
