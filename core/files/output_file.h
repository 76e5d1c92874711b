#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <sys/stat.h>

#include "core/files/descriptor.h"
#include "core/files/output_folder.h"

namespace shardlens {

// A file that did not exist before, open for reading and for writing at its end. The destructor
// removes it, unless keep() or replace() was called: what failed leaves nothing.
//
// Errors  WriteFault, also if an entry of any kind has the name.
class OutputFile {
 public:
  // Modes are those of open(2), less the umask.
  OutputFile(OutputFolder folder, std::string name, mode_t mode = 0666);
  // With the name `like`.tmp<32 random digits>; `like` is cut if that would be too long.
  [[nodiscard]] static OutputFile temporary(OutputFolder folder,
                                            const std::string& like,
                                            mode_t mode = 0666);
  // The regular file that a user's path leads to, through symlinks too, to write at its end. It is
  // made if it does not exist, and never removed.
  [[nodiscard]] static OutputFile appending(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  void write(std::string_view bytes);
  void write(std::span<const std::byte> bytes);
  // Gives the file the permissions of another one, and its group and owner as far as the user may.
  // Without the group, what the group was allowed is allowed only if all others were too.
  void take_permissions(const struct stat& from);
  // Puts the content on the disk.
  void sync();
  // Leaves the file under its name.
  void keep() noexcept { kept_ = true; }
  // Gives the file its final name in place of what has it, although it will still grow.
  void publish(const std::string& name);
  // Puts the content on the disk, gives the file its final name in place of what has it, and puts
  // the name on the disk.
  void replace(const std::string& name);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const OutputFolder& folder() const { return folder_; }
  [[nodiscard]] int descriptor() const { return file_.get(); }
  // Hands the open file over; it stays under its name.
  [[nodiscard]] Descriptor take() noexcept {
    kept_ = true;
    return std::move(file_);
  }
  [[nodiscard]] FileIdentity identity() const;

 private:
  OutputFile(OutputFolder folder, std::string name, Descriptor existing);
  [[noreturn]] void fail(int error) const;

  OutputFolder folder_;
  std::string name_;
  Descriptor file_;
  bool kept_ = false;
};

// Whether a name is `like`.tmp<32 digits>: returns `like`, or none.
[[nodiscard]] std::optional<std::string> name_of_temporary(std::string_view name);

// Writes all bytes to a descriptor. Returns 0 or errno.
[[nodiscard]] int write_all(int fd, std::string_view bytes);

}  // namespace shardlens
