#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/stat.h>

#include "core/base/error.h"
#include "core/files/descriptor.h"

namespace shardlens {

// "cannot write PATH: REASON".
class WriteFault : public RuntimeFault {
 public:
  WriteFault(const std::filesystem::path& path, const std::string& reason);
  WriteFault(const std::filesystem::path& path, int error);  // an errno
  [[nodiscard]] const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

// Which file an entry of a folder is, whatever its name.
struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  explicit FileIdentity(const struct stat& info) : device(info.st_dev), inode(info.st_ino) {}
  bool operator==(const FileIdentity&) const = default;
};

// 128 random bits as kIdentifierDigits hexadecimal digits: the part of a temporary name that cannot
// be guessed, and the identifiers in markers.
inline constexpr size_t kIdentifierDigits = 32;
[[nodiscard]] std::string random_identifier();
[[nodiscard]] bool is_identifier(std::string_view text);

// A folder to write to. It is held open, so it stays the same folder if its path is given to
// another one meanwhile, or to a symlink. Names are those of its entries, without '/'; no function
// follows a symlink that has such a name. Together with OutputFile and AtomicFile it
// is the only code that makes, renames or removes files.
//
// Ownership  copies share the open folder.
// Errors     WriteFault.
class OutputFolder {
 public:
  // An existing folder. Symlinks in `path` are followed. "" is the working directory.
  explicit OutputFolder(const std::filesystem::path& path);
  // The folder of a file. The error names the file.
  [[nodiscard]] static OutputFolder of(const std::filesystem::path& file);
  // Makes the folder and those above it if they do not exist.
  [[nodiscard]] static OutputFolder make(const std::filesystem::path& path);
  // Makes a folder in this one; no entry may have the name.
  [[nodiscard]] OutputFolder make_folder(const std::string& name, mode_t mode = 0777) const;
  // Opens a folder in this one. A symlink is an error.
  [[nodiscard]] OutputFolder open_folder(const std::string& name) const;
  // Opens the folder that a path leads to from here, following symlinks.
  [[nodiscard]] OutputFolder follow(const std::filesystem::path& path) const;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] int descriptor() const { return open_->get(); }  // opened with O_PATH
  [[nodiscard]] FileIdentity identity() const;

  // What has the name, as lstat(2) says; none if nothing has.
  [[nodiscard]] std::optional<struct stat> find(const std::string& name) const;
  [[nodiscard]] std::vector<std::string> names() const;
  // Opens a regular file, with flags of open(2); anything else is an error. O_CREAT makes it.
  [[nodiscard]] Descriptor open_file(const std::string& name, int flags, mode_t mode = 0666) const;
  // The content of a regular file of less than 1 MiB; none if there is no such file.
  [[nodiscard]] std::optional<std::string> small_file(const std::string& name) const;

  // Opens a device or a FIFO for writing; any other entry is an error, and so is a FIFO that no one
  // reads within ten seconds.
  [[nodiscard]] Descriptor open_special(const std::string& name) const;

  // Gives an entry another name. What has that name is replaced, as rename(2) does.
  void rename(const std::string& from, const std::string& to) const;
  // The same, but fails if `to` exists.
  void rename_to_new(const std::string& from, const std::string& to) const;
  // Two entries swap their names.
  void exchange(const std::string& first, const std::string& second) const;
  // Removes a file or an empty folder, if it still is the one that the caller made or has
  // recognised. Returns whether nothing has the name now; if not, errno says why. Another entry
  // stays: EBUSY.
  bool remove(const std::string& name, const FileIdentity& made) const noexcept;
  // Removes all that is in the folder but the entry `except`; the caller must own it as a whole.
  // Folders below are removed too, but not through symlinks and not on other file systems. Returns
  // whether all is gone.
  bool clear(const std::string& except = {}) const noexcept;
  // Puts the names on the disk: what was made, renamed or removed.
  void sync() const;

 private:
  OutputFolder(std::filesystem::path path, Descriptor open);
  [[noreturn]] void fail(const std::string& name, int error) const;

  std::filesystem::path path_;  // for messages
  std::shared_ptr<const Descriptor> open_;
};

}  // namespace shardlens
