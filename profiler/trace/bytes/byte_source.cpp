#include "profiler/trace/bytes/byte_source.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/input_pipe.h"
#include "profiler/trace/bytes/inflate.h"
#include "profiler/trace/bytes/read_ahead.h"

namespace shardlens::trace {
namespace {

class TextSource final : public ByteSource {
 public:
  explicit TextSource(std::string_view text) : text_(text) {}
  size_t read(char* out, size_t size) override {
    const size_t taken = std::min(size, text_.size());
    std::copy_n(text_.data(), taken, out);
    text_.remove_prefix(taken);
    return taken;
  }

 private:
  std::string_view text_;
};

// Uses read(2) instead of mmap, because pages of a mapped file count as memory of this process.
class FileSource final : public ByteSource {
 public:
  FileSource(const std::filesystem::path& path, Progress* progress)
      : name_(path.string()), progress_(progress) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) {
      throw InputError(name_, "no such file");
    }
    if (std::filesystem::is_directory(path, error)) {
      throw InputError(name_, "is a directory, expected a file");
    }
    const InputPipe pipe(path);
    descriptor_ =
        ::open(name_.c_str(), O_RDONLY | O_CLOEXEC);  // NOLINT(cppcoreguidelines-pro-type-vararg)
    if (descriptor_ < 0) {
      throw InputError(name_, std::strerror(errno));
    }
    (void)::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  ~FileSource() override {
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
  }
  size_t read(char* out, size_t size) override {
    while (true) {
      const ssize_t got = ::read(descriptor_, out, size);
      if (got >= 0) {
        note(static_cast<uint64_t>(got));
        return static_cast<size_t>(got);
      }
      if (errno != EINTR) {
        throw InputError(name_, fmt::format("cannot be read: {}", std::strerror(errno)));
      }
    }
  }

 private:
  void note(uint64_t bytes) const {
    if (progress_ == nullptr) {
      return;
    }
    progress_->bytes += bytes;
    progress_->check();
  }

  std::string name_;
  Progress* progress_;
  int descriptor_ = -1;
};

// Returns the first bytes, which were already read to find the file's kind, and then the rest.
class Rewound final : public ByteSource {
 public:
  Rewound(std::string first, std::unique_ptr<ByteSource> rest)
      : first_(std::move(first)), rest_(std::move(rest)) {}
  size_t read(char* out, size_t size) override {
    if (given_ == first_.size()) {
      return rest_->read(out, size);
    }
    const size_t taken = std::min(size, first_.size() - given_);
    std::copy_n(first_.data() + given_, taken, out);
    given_ += taken;
    return taken;
  }

 private:
  std::string first_;
  size_t given_ = 0;
  std::unique_ptr<ByteSource> rest_;
};

std::unique_ptr<ByteSource> by_kind(std::unique_ptr<ByteSource> file, const std::string& name) {
  std::string first(4, '\0');
  size_t size = 0;
  for (size_t got = 1; got != 0 && size < first.size(); size += got) {
    got = file->read(first.data() + size, first.size() - size);
  }
  first.resize(size);
  if (first.empty()) {
    throw InputError(name, "the file is empty");
  }
  const std::string magic = first;
  auto whole = std::make_unique<Rewound>(std::move(first), std::move(file));
  if (magic.starts_with("\x1f\x8b")) {
    return read_ahead(inflate_gzip(std::move(whole), name));
  }
  if (magic == "\x28\xb5\x2f\xfd") {
    return read_ahead(inflate_zstd(std::move(whole), name));
  }
  return whole;
}

}  // namespace

std::unique_ptr<ByteSource> open_source(const std::filesystem::path& path, Progress* progress) {
  return by_kind(std::make_unique<FileSource>(path, progress), path.string());
}

std::unique_ptr<ByteSource> open_source(std::string_view bytes, const std::string& name) {
  return by_kind(std::make_unique<TextSource>(bytes), name);
}

std::unique_ptr<ByteSource> source_of(std::string_view text) {
  return std::make_unique<TextSource>(text);
}

std::string read_all(ByteSource& source) {
  constexpr size_t kChunk = size_t{1} << 20;
  std::string text;
  while (true) {
    const size_t size = text.size();
    text.resize(size + kChunk);
    const size_t got = source.read(text.data() + size, kChunk);
    text.resize(size + got);
    if (got == 0) {
      return text;
    }
  }
}

}  // namespace shardlens::trace
