#include "cli/capture/private_directory.h"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"

namespace shardlens::cli {
namespace {

namespace fs = std::filesystem;

std::string private_mark(std::string_view identifier) {
  return fmt::format("temporary files of shardlens {}\n", identifier);
}

OutputFolder folder_for_temporary_files() {
  std::error_code error;
  const fs::path path = fs::temp_directory_path(error);
  if (error) {
    const char* named = std::getenv("TMPDIR");
    throw RuntimeFault(fmt::format("cannot use the directory for temporary files{}: {}",
                                   named == nullptr ? "" : fmt::format(", TMPDIR={}", named),
                                   error.message()));
  }
  return OutputFolder(path);
}

// The mark of a directory of this user, locked; none if it has no mark of ours, or its process
// lives.
Descriptor lock_left_behind(const OutputFolder& folder, std::string_view identifier) {
  Descriptor mark = folder.open_file(PrivateDirectory::kMark, O_RDONLY);
  struct stat info {};
  std::array<char, 256> text{};
  const ssize_t size = ::read(mark.get(), text.data(), text.size());
  if (::fstat(mark.get(), &info) != 0 || info.st_uid != ::geteuid() || size <= 0 ||
      std::string_view(text.data(), static_cast<size_t>(size)) != private_mark(identifier) ||
      ::flock(mark.get(), LOCK_EX | LOCK_NB) != 0) {
    return {};
  }
  return mark;
}

// The mark is the last file to go, so that what a process leaves that is killed here has a mark.
void remove_private(const OutputFolder& below,
                    const std::string& name,
                    const OutputFolder& folder) {
  if (!folder.clear(PrivateDirectory::kMark)) {
    return;
  }
  if (const auto mark = folder.find(PrivateDirectory::kMark)) {
    folder.remove(PrivateDirectory::kMark, FileIdentity(*mark));
  }
  below.remove(name, folder.identity());
}

void remove_those_left_behind(const OutputFolder& below) {
  const std::string_view prefix = PrivateDirectory::kPrefix;
  for (const std::string& name : below.names()) {
    if (!name.starts_with(prefix)) {
      continue;
    }
    try {
      const auto info = below.find(name);
      if (!info || !S_ISDIR(info->st_mode) || info->st_uid != ::geteuid()) {
        continue;
      }
      const OutputFolder folder = below.open_folder(name);
      const Descriptor lock = lock_left_behind(folder, name.substr(prefix.size()));
      if (lock.open()) {
        remove_private(below, name, folder);
      }
    } catch (const WriteFault&) {  // no mark, or removed by another process meanwhile
    }
  }
}

}  // namespace

PrivateDirectory::PrivateDirectory() : below_(folder_for_temporary_files()) {
  try {
    remove_those_left_behind(below_);
  } catch (const WriteFault&) {  // one may write to the directory, but not read it
  }
  const std::string identifier = random_identifier();
  name_ = kPrefix + identifier;
  try {
    create(identifier);
  } catch (const WriteFault& fault) {
    throw RuntimeFault(
        fmt::format("cannot create a directory in {}: {}", below_.path().string(), fault.reason()));
  }
}

void PrivateDirectory::create(const std::string& identifier) {
  folder_.emplace(below_.make_folder(name_, 0700));
  try {
    mark_.emplace(*folder_, kMark, 0600);
    // Before it has a text, so that no other process takes the directory for one left behind.
    (void)::flock(mark_->descriptor(), LOCK_EX | LOCK_NB);
    mark_->write(private_mark(identifier));
    reserve_ = folder_->open_file(kMark, O_RDONLY);
  } catch (const WriteFault&) {
    mark_.reset();
    below_.remove(name_, folder_->identity());
    throw;
  }
}

PrivateDirectory::~PrivateDirectory() {
  mark_->keep();
  reserve_.reset();
  try {
    remove_private(below_, name_, *folder_);
  } catch (const WriteFault&) {  // what is left has a mark, and goes with the next run
  }
}

}  // namespace shardlens::cli
