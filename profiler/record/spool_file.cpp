#include "profiler/record/spool_file.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "core/base/error.h"
#include "profiler/record/clock.h"

namespace shardlens::record {
namespace {

bool write_all(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(fd, data, size);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      return false;
    }
    data += written;
    size -= static_cast<size_t>(written);
  }
  return true;
}

}  // namespace

SpoolFile::SpoolFile(const std::filesystem::path& path, int rank, int world_size) {
  trace::SpoolHeader header;
  std::memcpy(header.magic, trace::kSpoolMagic, sizeof(header.magic));
  header.version = trace::kSpoolVersion;
  header.record_bytes = trace::kSpoolRecordBytes;
  header.rank = rank;
  header.world_size = world_size;
  header.process = ::getpid();
  header.created = now_ns();
  header.check = spool_check(header);
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0 || !write_all(fd_, reinterpret_cast<const char*>(&header), sizeof(header))) {
    const int reason = errno;
    if (fd_ >= 0) {
      ::close(fd_);
    }
    throw RuntimeFault(fmt::format("cannot write {}: {}", path.string(), std::strerror(reason)));
  }
  bytes_ = sizeof(header);
}

SpoolFile::~SpoolFile() {
  ::close(fd_);
}

bool SpoolFile::append(std::vector<trace::SpoolRecord>& records) {
  if (!error_.empty()) {
    return false;
  }
  for (trace::SpoolRecord& record : records) {
    record.check = spool_check(record);
  }
  const size_t size = records.size() * sizeof(trace::SpoolRecord);
  if (!write_all(fd_, reinterpret_cast<const char*>(records.data()), size)) {
    error_ = std::strerror(errno);
    if (::ftruncate(fd_, bytes_) != 0) {
      error_ += ", and the spool ends in an incomplete record";
    }
    return false;
  }
  bytes_ += static_cast<Bytes>(size);
  return true;
}

}  // namespace shardlens::record
