#include "core/base/atomic_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <unistd.h>

#include "core/base/error.h"

namespace shardlens {

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  const std::filesystem::path temporary = path.string() + ".tmp" + std::to_string(::getpid());
  std::error_code ignored;
  errno = 0;
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    out.close();
    if (!out) {
      const std::string reason = errno != 0 ? std::strerror(errno) : "write failed";
      std::filesystem::remove(temporary, ignored);
      throw RuntimeFault("cannot write " + path.string() + ": " + reason);
    }
  }
  std::error_code failure;
  std::filesystem::rename(temporary, path, failure);
  if (failure) {
    std::filesystem::remove(temporary, ignored);
    throw RuntimeFault("cannot write " + path.string() + ": " + failure.message());
  }
}

}  // namespace shardlens
