#include "core/files/output_file.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include "core/files/output_place.h"

namespace shardlens {
namespace {

constexpr std::string_view kEnding = ".tmp";
constexpr mode_t kPermissions = 0777;  // no set-user-ID and the like

// At most `most` bytes, without a part of a character of UTF-8.
std::string beginning(const std::string& text, size_t most) {
  if (text.size() <= most) {
    return text;
  }
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0U) == 0x80U) {
    --most;
  }
  return text.substr(0, most);
}

std::string temporary_name(const std::string& like) {
  return beginning(like, NAME_MAX - kEnding.size() - kIdentifierDigits)
      .append(kEnding)
      .append(random_identifier());
}

}  // namespace

int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) {
      return errno;
    }
    bytes.remove_prefix(written > 0 ? static_cast<size_t>(written) : 0);
  }
  return 0;
}

std::optional<std::string> name_of_temporary(std::string_view name) {
  if (name.size() <= kEnding.size() + kIdentifierDigits) {
    return std::nullopt;
  }
  const std::string_view digits = name.substr(name.size() - kIdentifierDigits);
  const std::string_view rest = name.substr(0, name.size() - kIdentifierDigits);
  if (!is_identifier(digits) || !rest.ends_with(kEnding)) {
    return std::nullopt;
  }
  return std::string(rest.substr(0, rest.size() - kEnding.size()));
}

OutputFile::OutputFile(OutputFolder folder, std::string name, mode_t mode)
    : folder_(std::move(folder)),
      name_(std::move(name)),
      file_(folder_.open_file(name_, O_RDWR | O_APPEND | O_CREAT | O_EXCL, mode)) {}

OutputFile OutputFile::temporary(OutputFolder folder, const std::string& like, mode_t mode) {
  return {std::move(folder), temporary_name(like), mode};
}

OutputFile::OutputFile(OutputFolder folder, std::string name, Descriptor existing)
    : folder_(std::move(folder)), name_(std::move(name)), file_(std::move(existing)), kept_(true) {}

OutputFile OutputFile::appending(const std::filesystem::path& path) {
  OutputPlace place = find_output_place(path);
  if (place.descriptor || place.special()) {
    throw WriteFault(path, "not a regular file");
  }
  try {
    Descriptor file = place.folder.open_file(place.name, O_RDWR | O_APPEND | O_CREAT);
    return {std::move(place.folder), std::move(place.name), std::move(file)};
  } catch (const WriteFault& fault) {
    throw WriteFault(path, fault.reason());
  }
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : folder_(other.folder_),
      name_(other.name_),
      file_(std::move(other.file_)),
      kept_(std::exchange(other.kept_, true)) {}

OutputFile::~OutputFile() {
  struct stat info {};
  if (!kept_ && ::fstat(file_.get(), &info) == 0) {
    folder_.remove(name_, FileIdentity(info));
  }
}

void OutputFile::write(std::string_view bytes) {
  if (const int reason = write_all(file_.get(), bytes); reason != 0) {
    fail(reason);
  }
}

void OutputFile::write(std::span<const std::byte> bytes) {
  write(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

void OutputFile::take_permissions(const struct stat& from) {
  struct stat own {};
  if (::fstat(file_.get(), &own) != 0) {
    fail(errno);
  }
  mode_t mode = from.st_mode & kPermissions;
  constexpr uid_t kSame = -1;
  if (own.st_gid != from.st_gid && ::fchown(file_.get(), kSame, from.st_gid) != 0) {
    mode &= ~mode_t{070} | (mode & 07U) << 3U;
  }
  if (own.st_uid != from.st_uid) {
    // Only root may; for others the new file is their own, as with any program that renames.
    (void)!::fchown(file_.get(), from.st_uid, static_cast<gid_t>(-1));
  }
  if ((own.st_mode & kPermissions) != mode && ::fchmod(file_.get(), mode) != 0) {
    fail(errno);
  }
}

void OutputFile::sync() {
  if (::fsync(file_.get()) != 0 && errno != EINVAL) {  // EINVAL: not on this file system
    fail(errno);
  }
}

void OutputFile::publish(const std::string& name) {
  folder_.rename(name_, name);
  name_ = name;
  kept_ = true;
}

void OutputFile::replace(const std::string& name) {
  sync();
  publish(name);
  folder_.sync();
}

FileIdentity OutputFile::identity() const {
  struct stat info {};
  if (::fstat(file_.get(), &info) != 0) {
    fail(errno);
  }
  return FileIdentity(info);
}

void OutputFile::fail(int error) const {
  throw WriteFault(folder_.path() / name_, error);
}

}  // namespace shardlens
