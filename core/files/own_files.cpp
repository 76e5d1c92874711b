#include "core/files/own_files.h"

#include <algorithm>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>

#include "core/files/output_file.h"

namespace shardlens {
namespace {

constexpr std::string_view kHead = "files that shardlens wrote here\n";

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    out.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

// Whether the entry leads to a device or a FIFO, perhaps through symlinks.
bool is_special(const OutputFolder& folder, const std::string& name) {
  struct stat info {};
  return ::fstatat(folder.descriptor(), name.c_str(), &info, 0) == 0 && !S_ISREG(info.st_mode) &&
         !S_ISDIR(info.st_mode);
}

}  // namespace

OwnFiles::OwnFiles(OutputFolder folder) : folder_(std::move(folder)) {
  const std::string text = folder_.small_file(kList).value_or("");
  if (text.starts_with(kHead)) {
    listed_ = lines_of(std::string_view(text).substr(kHead.size()));
  }
}

bool OwnFiles::foreign(const std::string& name) const {
  return folder_.find(name) && !is_special(folder_, name) &&
         std::find(listed_.begin(), listed_.end(), name) == listed_.end();
}

void OwnFiles::add(std::span<const std::string> names) {
  std::string text;
  for (const std::string& name : names) {
    if (std::find(listed_.begin(), listed_.end(), name) == listed_.end()) {
      text += name + "\n";
      listed_.push_back(name);
    }
  }
  if (text.empty()) {
    return;
  }
  if (!folder_.find(kList)) {
    OutputFile list = OutputFile::temporary(folder_, kList);
    list.write(std::string(kHead) + text);
    list.replace(kList);
    return;
  }
  const std::string before = folder_.small_file(kList).value_or("");
  if (!before.starts_with(kHead)) {
    throw WriteFault(folder_.path() / kList, "it is no list of this program");
  }
  const Descriptor list = folder_.open_file(kList, O_WRONLY | O_APPEND);
  if (const int error = write_all(list.get(), text); error != 0) {
    throw WriteFault(folder_.path() / kList, error);
  }
}

}  // namespace shardlens
