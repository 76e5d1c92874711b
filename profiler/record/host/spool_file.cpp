#include "profiler/record/host/spool_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/files/output_file.h"
#include "profiler/record/host/clock.h"

namespace shardlens::record {
namespace {

// Returns how many bytes were written: fewer than `size` after an error, which is in errno.
size_t write_some(int fd, const char* data, size_t size) {
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

// Whether the file is a spool, or the start of one, so that its content may be given up for a new
// spool.
bool is_spool(int fd) {
  std::array<char, sizeof(trace::kSpoolMagic)> begin{};
  const ssize_t size = ::pread(fd, begin.data(), begin.size(), 0);
  return size >= 0 && std::memcmp(begin.data(), trace::kSpoolMagic, static_cast<size_t>(size)) == 0;
}

// A new file, or the one that is there.
Descriptor open_or_make(const OutputFolder& folder, const std::string& name) {
  constexpr int kFlags = O_RDWR | O_APPEND;
  try {
    return folder.open_file(name, kFlags | O_CREAT | O_EXCL, 0644);
  } catch (const WriteFault&) {
    if (!folder.find(name)) {
      throw;
    }
  }
  return folder.open_file(name, kFlags);
}

// Opens the file, locked for this process, and empties it. On a file system without locks nothing
// is locked. A FIFO that the user made is written as it is.
Descriptor open_alone(const OutputFolder& folder, const std::string& name) {
  const auto found = folder.find(name);
  if (found && S_ISFIFO(found->st_mode)) {
    return folder.open_special(name);
  }
  Descriptor file = open_or_make(folder, name);
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw RuntimeFault(
        fmt::format("{}: another process is recording to it; has the rank been started twice?",
                    (folder.path() / name).string()));
  }
  if (!is_spool(file.get())) {
    throw WriteFault(folder.path() / name,
                     "another file has this name; remove it, or record to "
                     "another directory");
  }
  if (::ftruncate(file.get(), 0) != 0) {
    throw WriteFault(folder.path() / name, errno);
  }
  return file;
}

// The state that later records need, and a count of what was lost so far.
bool outlives_its_step(trace::SpoolType type) {
  switch (type) {
    case trace::SpoolType::kText:
    case trace::SpoolType::kUnit:
    case trace::SpoolType::kGroup:
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
    if (write_some(to, block.data(), used) < used) {
      return -1;
    }
    at += static_cast<Bytes>(size);
  }
  return kept;
}

}  // namespace

SpoolFile::SpoolFile(const std::filesystem::path& path, int rank, int world_size)
    : folder_(OutputFolder::of(path)),
      name_(path.filename().string()),
      file_(open_alone(folder_, name_)) {
  trace::SpoolHeader header;
  std::memcpy(header.magic, trace::kSpoolMagic, sizeof(header.magic));
  header.version = trace::kSpoolVersion;
  header.record_bytes = trace::kSpoolRecordBytes;
  header.rank = rank;
  header.world_size = world_size;
  header.process = ::getpid();
  header.created = now_ns();
  header.check = spool_check(header);
  if (write_some(file_.get(), reinterpret_cast<const char*>(&header), sizeof(header)) <
      sizeof(header)) {
    throw WriteFault(path, errno);
  }
  bytes_ = sizeof(header);
}

size_t SpoolFile::append(std::vector<trace::SpoolRecord>& records) {
  if (!error_.empty()) {
    return 0;
  }
  for (trace::SpoolRecord& record : records) {
    record.check = spool_check(record);
  }
  constexpr size_t kSize = sizeof(trace::SpoolRecord);
  const size_t done = write_some(file_.get(), reinterpret_cast<const char*>(records.data()),
                                 records.size() * kSize) /
                      kSize;
  for (size_t i = 0; i < done; ++i) {
    if (records[i].type == trace::SpoolType::kStepBegin) {
      steps_.push_back(bytes_ + static_cast<Bytes>(i * kSize));
    }
  }
  bytes_ += static_cast<Bytes>(done * kSize);
  if (done < records.size()) {
    error_ = std::strerror(errno);
    if (::ftruncate(file_.get(), bytes_) != 0) {
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
  try {
    OutputFile copy = OutputFile::temporary(folder_, name_, 0644);
    (void)::flock(copy.descriptor(), LOCK_EX | LOCK_NB);  // before another process sees the name
    const Bytes kept = copy_from(file_.get(), copy.descriptor(), *first, bytes_);
    if (kept < 0) {
      throw WriteFault(folder_.path() / name_, errno);
    }
    copy.publish(name_);
    file_ = copy.take();
    forget_steps(removed, kept);
    return removed;
  } catch (const RuntimeFault&) {
    can_copy_ = false;
    return 0;
  }
}

void SpoolFile::forget_steps(size_t count, Bytes kept) {
  const Bytes moved = steps_[count] - kept;
  steps_.erase(steps_.begin(), steps_.begin() + static_cast<std::ptrdiff_t>(count));
  for (Bytes& step : steps_) {
    step -= moved;
  }
  bytes_ -= moved;
}

void SpoolFile::remove() noexcept {
  struct stat own {};
  if (::fstat(file_.get(), &own) == 0) {
    folder_.remove(name_, FileIdentity(own));
  }
}

}  // namespace shardlens::record
