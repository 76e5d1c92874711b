#include "core/weights/mapped_file.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/files/input_file.h"

namespace shardlens::models {
namespace {

constexpr uint64_t kLargestFile = uint64_t{1} << 42;  // 4 TiB, more than any model's weights

}  // namespace

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  const InputFile file(path_, {.most_bytes = kLargestFile, .expected = "a file of weights"});
  if (file.size() == 0) {
    return;
  }
  void* address = ::mmap(nullptr, file.size(), PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (address == MAP_FAILED) {
    throw InputError(path_.string(), std::string("cannot be read: ") + std::strerror(errno));
  }
  bytes_ = {static_cast<const std::byte*>(address), file.size()};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());  // NOLINT: munmap's signature
  }
}

void MappedFile::release(std::span<const std::byte> part) const {
  static const auto kPage = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(part.data());
  const uintptr_t begin = (address + kPage - 1) / kPage * kPage;
  const uintptr_t end = (address + part.size()) / kPage * kPage;
  if (begin < end) {
    ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);  // NOLINT: its signature
  }
}

}  // namespace shardlens::models
