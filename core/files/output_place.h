#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include <sys/stat.h>

#include "core/files/output_folder.h"

namespace shardlens {

// Where the path of an output that a user named leads. Symlinks are followed, also one whose target
// does not exist: the user chose the link. Each folder on the way is held open while the next step
// is taken from it.
struct OutputPlace {
  OutputFolder folder;
  std::string name;                  // an entry of the folder, no symlink; it need not exist
  std::optional<struct stat> found;  // what has the name
  std::optional<int> descriptor;     // a descriptor of this process, if the path names one

  // A device, a FIFO, …
  [[nodiscard]] bool special() const { return found && !S_ISREG(found->st_mode); }
};

// Errors: WriteFault with the path as it was passed in, also if it is a folder.
[[nodiscard]] OutputPlace find_output_place(const std::filesystem::path& path);

}  // namespace shardlens
