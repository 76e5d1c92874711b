#include "profiler/record/spool_file.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/base/error.h"
#include "profiler/record/clock.h"

namespace shardlens::record {
namespace {

// Returns how many bytes were written: fewer than `size` after an error, which is in errno.
size_t write_all(int fd, const char* data, size_t size) {
  size_t done = 0;
  while (done < size) {
    const ssize_t written = ::write(fd, data + done, size - done);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      break;
    }
    done += static_cast<size_t>(written);
  }
  return done;
}

// Opens the file for this process alone and empties it. On a file system without locks nothing is
// locked. Returns -1 with errno on failure.
int open_alone(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(fd);
    throw RuntimeFault(fmt::format(
        "{}: another process is recording to it; has the rank been started twice?", path.string()));
  }
  if (fd >= 0 && ::ftruncate(fd, 0) != 0 && errno != EINVAL) {  // EINVAL: not a regular file
    const int reason = errno;
    ::close(fd);
    errno = reason;
    return -1;
  }
  return fd;
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
  fd_ = open_alone(path);
  if (fd_ < 0 ||
      write_all(fd_, reinterpret_cast<const char*>(&header), sizeof(header)) < sizeof(header)) {
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

size_t SpoolFile::append(std::vector<trace::SpoolRecord>& records) {
  if (!error_.empty()) {
    return 0;
  }
  for (trace::SpoolRecord& record : records) {
    record.check = spool_check(record);
  }
  constexpr size_t kSize = sizeof(trace::SpoolRecord);
  const size_t done =
      write_all(fd_, reinterpret_cast<const char*>(records.data()), records.size() * kSize) / kSize;
  bytes_ += static_cast<Bytes>(done * kSize);
  if (done < records.size()) {
    error_ = std::strerror(errno);
    if (::ftruncate(fd_, bytes_) != 0) {
      error_ += ", and the spool ends in an incomplete record";
    }
  }
  return done;
}

}  // namespace shardlens::record
