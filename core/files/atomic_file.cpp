#include "core/files/atomic_file.h"

#include <cerrno>
#include <utility>

#include <fcntl.h>

#include "core/files/output_folder.h"
#include "core/files/output_place.h"

namespace shardlens {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBufferBytes = size_t{1} << 16;

// Opens a descriptor of this process, a device or a FIFO.
Descriptor open_directly(const fs::path& path, const OutputPlace& place) {
  if (place.descriptor) {
    Descriptor copy(::fcntl(*place.descriptor, F_DUPFD_CLOEXEC, 0));
    if (!copy.open()) {
      throw WriteFault(path, errno);
    }
    return copy;
  }
  try {
    return place.folder.open_special(place.name);
  } catch (const WriteFault& fault) {
    throw WriteFault(path, fault.reason());
  }
}

}  // namespace

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)) {
  OutputPlace place = find_output_place(path_);
  if (place.descriptor || place.special()) {
    direct_ = open_directly(path_, place);
  } else {
    // Until it has the permissions of the file that it replaces, only the user may read it.
    const mode_t mode = place.found ? 0600 : 0666;
    try {
      file_.emplace(OutputFile::temporary(place.folder, place.name, mode));
    } catch (const WriteFault& fault) {
      throw WriteFault(path_, fault.reason());
    }
    name_ = std::move(place.name);
    replaced_ = place.found;
  }
  buffer_.reserve(kBufferBytes);
}

void AtomicFile::write(std::string_view bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) {
    flush();
  }
  if (bytes.size() < kBufferBytes) {
    buffer_.append(bytes);
    return;
  }
  if (const int reason = write_all(file_ ? file_->descriptor() : direct_.get(), bytes);
      reason != 0) {
    throw WriteFault(path_, reason);
  }
}

void AtomicFile::flush() {
  const int reason = write_all(file_ ? file_->descriptor() : direct_.get(), buffer_);
  buffer_.clear();
  if (reason != 0) {
    throw WriteFault(path_, reason);
  }
}

void AtomicFile::commit() {
  flush();
  if (!file_) {
    if (const int reason = direct_.reset(); reason != 0) {
      throw WriteFault(path_, reason);
    }
    return;
  }
  try {
    if (replaced_) {
      file_->take_permissions(*replaced_);
    }
    file_->replace(name_);
  } catch (const WriteFault& fault) {
    throw WriteFault(path_, fault.reason());
  }
}

void write_file_atomically(const fs::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

}  // namespace shardlens
