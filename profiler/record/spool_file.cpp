#include "profiler/record/spool_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/input_file.h"
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

// What later records need, and what was lost so far.
bool outlives_its_step(trace::SpoolType type) {
  switch (type) {
    case trace::SpoolType::kText:
    case trace::SpoolType::kUnit:
    case trace::SpoolType::kMetadata:
    case trace::SpoolType::kDeviceProperties:
    case trace::SpoolType::kNote:
    case trace::SpoolType::kDeviceDropped:
      return true;
    default:
      return false;
  }
}

// Copies the header, of the records before `cut` those that outlive their steps, and all records
// from `cut` on. Returns how many bytes are in the copy before what was at `cut`; -1 on failure.
Bytes copy_from(int from, int to, Bytes cut, Bytes end) {
  constexpr size_t kRecord = sizeof(trace::SpoolRecord);
  std::vector<char> block(kRecord << 14U);
  Bytes kept = 0;
  for (Bytes at = 0; at < end;) {
    const Bytes limit = at < cut ? cut : end;
    const auto size = std::min(block.size(), static_cast<size_t>(limit - at));
    if (::pread(from, block.data(), size, at) != static_cast<ssize_t>(size)) {
      return -1;
    }
    size_t used = size;
    if (at < cut) {
      used = 0;
      for (size_t i = 0; i < size; i += kRecord) {
        const bool header = at + static_cast<Bytes>(i) == 0;
        if (header || outlives_its_step(static_cast<trace::SpoolType>(block[i]))) {
          std::memmove(block.data() + used, block.data() + i, kRecord);
          used += kRecord;
        }
      }
      kept += static_cast<Bytes>(used);
    }
    if (write_all(to, block.data(), used) < used) {
      return -1;
    }
    at += static_cast<Bytes>(size);
  }
  return kept;
}

}  // namespace

SpoolFile::SpoolFile(const std::filesystem::path& path, int rank, int world_size) : path_(path) {
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
  for (size_t i = 0; i < done; ++i) {
    if (records[i].type == trace::SpoolType::kStepBegin) {
      steps_.push_back(bytes_ + static_cast<Bytes>(i * kSize));
    }
  }
  bytes_ += static_cast<Bytes>(done * kSize);
  if (done < records.size()) {
    error_ = std::strerror(errno);
    if (::ftruncate(fd_, bytes_) != 0) {
      error_ += ", and the spool ends in an incomplete record";
    }
  }
  return done;
}

size_t SpoolFile::keep_newest(Bytes most) {
  if (!can_copy_ || !error_.empty() || steps_.size() < 2) {
    return 0;
  }
  auto first = std::ranges::lower_bound(steps_, bytes_ - most);
  first -= first == steps_.end() ? 1 : 0;
  const auto removed = static_cast<size_t>(first - steps_.begin());
  if (removed == 0) {
    return 0;
  }
  // The name of a file that the next capture to this directory may remove.
  const std::string copy = fmt::format("{}.tmp{}.0", path_.string(), ::getpid());
  const int from = try_open_input(path_, {.most_bytes = UINT64_MAX});
  const int to = ::open(copy.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
  Bytes kept = -1;
  if (from >= 0 && to >= 0) {
    (void)::flock(to, LOCK_EX | LOCK_NB);  // nobody else knows the name
    kept = copy_from(from, to, *first, bytes_);
  }
  if (from >= 0) {
    ::close(from);
  }
  if (kept < 0 || ::rename(copy.c_str(), path_.c_str()) != 0) {
    if (to >= 0) {
      ::close(to);
      ::unlink(copy.c_str());
    }
    can_copy_ = false;
    return 0;
  }
  ::close(fd_);
  fd_ = to;
  const Bytes moved = *first - kept;
  steps_.erase(steps_.begin(), first);
  for (Bytes& step : steps_) {
    step -= moved;
  }
  bytes_ -= moved;
  return removed;
}

}  // namespace shardlens::record
