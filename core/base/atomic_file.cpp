#include "core/base/atomic_file.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include <unistd.h>

#include "core/base/error.h"

namespace shardlens {
namespace {

// Of this process alone, also where two threads write the same path.
std::string unique_ending() {
  static std::atomic<unsigned> count = 0;
  return ".tmp" + std::to_string(::getpid()) + "." + std::to_string(count++);
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path)
    : path_(std::move(path)), temporary_(path_.string() + unique_ending()) {
  errno = 0;
  out_.open(temporary_, std::ios::binary | std::ios::trunc);
  if (!out_) {
    fail("cannot be opened");
  }
}

AtomicFile::~AtomicFile() {
  if (!committed_) {
    out_.close();
    std::error_code ignored;
    std::filesystem::remove(temporary_, ignored);
  }
}

void AtomicFile::fail(const char* fallback) {
  throw RuntimeFault("cannot write " + path_.string() + ": " +
                     (errno != 0 ? std::strerror(errno) : fallback));
}

void AtomicFile::write(std::string_view bytes) {
  errno = 0;
  out_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!out_) {
    fail("write failed");
  }
}

void AtomicFile::commit() {
  errno = 0;
  out_.close();
  if (!out_) {
    fail("write failed");
  }
  std::error_code failure;
  std::filesystem::rename(temporary_, path_, failure);
  if (failure) {
    throw RuntimeFault("cannot write " + path_.string() + ": " + failure.message());
  }
  committed_ = true;
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

}  // namespace shardlens
