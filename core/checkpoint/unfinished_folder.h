#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/output_folder.h"

namespace shardlens::checkpoint {

// NAME.tmp<id>.
[[nodiscard]] std::string unfinished_name(std::string_view name, std::string_view id);

// A folder of a checkpoint that is complete as soon as it has its final name NAME. Until then it is
// called NAME.tmp<id> and has a marker, a file with the identifier, which cannot be guessed. By the
// marker a later process recognises what an earlier one began to write. It removes nothing else.
//
// Errors  WriteFault.
class UnfinishedFolder {
 public:
  // Makes the folder and its marker. If it exists, another rank of the run has made it, and it is
  // opened.
  UnfinishedFolder(OutputFolder parent, std::string name, std::string id);
  // Opens one that exists.
  [[nodiscard]] static UnfinishedFolder open(OutputFolder parent, std::string name, std::string id);

  [[nodiscard]] const OutputFolder& folder() const { return folder_; }
  enum class Existing : uint8_t { kRefuse, kReplace };
  // Puts it on the disk and gives it its final name, which nothing may have. kReplace: or a
  // checkpoint, which is removed after the two have exchanged their names. Returns the path.
  std::filesystem::path finish(Existing existing);
  // Removes it. Returns why not, "" if it did.
  std::string remove() const noexcept;

 private:
  struct Opened {};
  UnfinishedFolder(Opened, OutputFolder parent, std::string name, std::string id);

  OutputFolder parent_;
  std::string name_, id_;
  OutputFolder folder_;
};

// Removes the complete folder NAME of `parent`, a checkpoint: it is called NAME.tmp<id> before the
// first of its files is missing. Returns why not, "" if it did. Errors: WriteFault.
[[nodiscard]] std::string remove_complete(const OutputFolder& parent,
                                          const std::string& name,
                                          const std::string& id);

// Removes the unfinished folders that earlier processes have left in `parent`, of the names that
// `is_ours` accepts. The caller has the lock under which such folders are written. What has no
// marker, or a file that no checkpoint has, stays: returns a message for each of these.
[[nodiscard]] std::vector<std::string> remove_interrupted(
    const OutputFolder& parent, const std::function<bool(std::string_view)>& is_ours);

// Writes a new file; it is on the disk when this returns. Errors: WriteFault.
void write_durably(const OutputFolder& folder, const std::string& name, std::string_view text);

}  // namespace shardlens::checkpoint
