#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace shardlens::gui {

// A pipe with a path, into which a test writes a file as far as it wants, so that it decides when
// the reader gets the rest.
class SlowFile {
 public:
  SlowFile(std::string path, std::string bytes) : path_(std::move(path)), bytes_(std::move(bytes)) {
    EXPECT_EQ(::mkfifo(path_.c_str(), 0600), 0) << path_;
    // To open it for writing only would wait for the reader.
    pipe_ = ::open(path_.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    EXPECT_GE(pipe_, 0) << path_;
  }
  SlowFile(const SlowFile&) = delete;
  SlowFile& operator=(const SlowFile&) = delete;
  ~SlowFile() { close(); }

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] size_t size() const { return bytes_.size(); }
  // Writes what fits into the pipe of the first `end` bytes.
  void write(size_t end) {
    while (pipe_ >= 0 && written_ < end) {
      const ssize_t wrote = ::write(pipe_, bytes_.data() + written_, end - written_);
      if (wrote <= 0) {
        return;
      }
      written_ += static_cast<size_t>(wrote);
    }
  }
  // Writes the rest; when all is written, the reader finds the end.
  void finish() {
    write(bytes_.size());
    if (written_ == bytes_.size()) {
      close();
    }
  }
  // The reader finds the end after what was written.
  void close() {
    if (pipe_ >= 0) {
      ::close(std::exchange(pipe_, -1));
    }
  }

 private:
  std::string path_, bytes_;
  int pipe_ = -1;
  size_t written_ = 0;
};

}  // namespace shardlens::gui
