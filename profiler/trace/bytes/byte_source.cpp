#include "profiler/trace/bytes/byte_source.h"

#include <algorithm>

#include <fcntl.h>

#include "core/base/error.h"
#include "core/files/input_file.h"
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
      : file_(path, {.most_bytes = kLargestTrace, .pipes = true}), progress_(progress) {
    (void)::posix_fadvise(file_.descriptor(), 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  size_t read(char* out, size_t size) override {
    const size_t got = file_.read(out, size);
    note(got);
    return got;
  }
  [[nodiscard]] uint64_t size() const { return file_.size(); }

 private:
  void note(uint64_t bytes) const {
    if (progress_ == nullptr) {
      return;
    }
    progress_->bytes += bytes;
    progress_->check();
  }

  InputFile file_;
  Progress* progress_;
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

constexpr std::string_view kGzip = "\x1f\x8b", kZstd = "\x28\xb5\x2f\xfd";

// `size`: of the file; 0: not known.
std::unique_ptr<ByteSource> by_kind(std::unique_ptr<ByteSource> file,
                                    const std::string& name,
                                    uint64_t size = 0) {
  const size_t from = size >= kAheadFromFile ? 0 : kAheadFrom;
  std::string magic;
  auto whole = with_head(std::move(file), 4, magic);
  if (magic.empty()) {
    throw InputError(name, "the file is empty");
  }
  if (magic.starts_with(kGzip)) {
    return read_ahead(inflate_gzip(std::move(whole), name), from);
  }
  if (magic == kZstd) {
    return read_ahead(inflate_zstd(std::move(whole), name), from);
  }
  return whole;
}

}  // namespace

bool is_compressed(std::string_view head) {
  return head.starts_with(kGzip) || head.starts_with(kZstd);
}

std::unique_ptr<ByteSource> with_head(std::unique_ptr<ByteSource> source,
                                      size_t size,
                                      std::string& head) {
  head.assign(size, '\0');
  size_t read = 0;
  for (size_t got = 1; got != 0 && read < size; read += got) {
    got = source->read(head.data() + read, size - read);
  }
  head.resize(read);
  return std::make_unique<Rewound>(head, std::move(source));
}

std::unique_ptr<ByteSource> open_source(const std::filesystem::path& path, Progress* progress) {
  auto file = std::make_unique<FileSource>(path, progress);
  const uint64_t size = file->size();
  return by_kind(std::move(file), path.string(), size);
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
