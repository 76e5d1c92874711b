#include "core/models/mapped_file.h"

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"

namespace shardlens::models {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, int reason) {
  throw InputError(path.string(), std::string("cannot read: ") + std::strerror(reason));
}

}  // namespace

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  const int descriptor = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    fail(path_, errno);
  }
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    const int reason = S_ISDIR(status.st_mode) ? EISDIR : (errno != 0 ? errno : EINVAL);
    ::close(descriptor);
    fail(path_, reason);
  }
  const auto size = static_cast<size_t>(status.st_size);
  if (size > 0) {
    void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (address == MAP_FAILED) {
      const int reason = errno;
      ::close(descriptor);
      fail(path_, reason);
    }
    bytes_ = {static_cast<const std::byte*>(address), size};
  }
  ::close(descriptor);
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());  // NOLINT: munmap's signature
  }
}

}  // namespace shardlens::models
