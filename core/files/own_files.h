#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/output_folder.h"

namespace shardlens {

// Which files of a folder this program wrote, where the user named the folder and the program the
// files: the names are in a list next to them. A name is listed before its file is written, so an
// interrupted command can be repeated.
//
// Errors  WriteFault.
class OwnFiles {
 public:
  static constexpr const char* kList = ".shardlens-files";

  // A list with a text of another program counts as none.
  explicit OwnFiles(OutputFolder folder);

  // Whether something that is not listed has the name. A device or a FIFO has nothing to lose.
  [[nodiscard]] bool foreign(const std::string& name) const;
  // Lists the names. Another process may do the same meanwhile.
  void add(std::span<const std::string> names);

 private:
  OutputFolder folder_;
  std::vector<std::string> listed_;
};

}  // namespace shardlens
