#include "core/checkpoint/companion_files.h"

#include <algorithm>
#include <system_error>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/plan/json_reader.h"

namespace shardlens::checkpoint {
namespace {

namespace fs = std::filesystem;

bool is_inside(const fs::path& path, const fs::path& directory) {
  return std::mismatch(path.begin(), path.end(), directory.begin(), directory.end()).second ==
         directory.end();
}

bool may_be_copied(const fs::path& file, const fs::path& directory) {
  const fs::path parent = directory.parent_path();
  return is_inside(file, directory) ||
         (parent.filename() == "snapshots" && is_inside(file, parent.parent_path() / "blobs"));
}

}  // namespace

std::optional<CompanionFile> read_companion(const fs::path& directory, const std::string& name) {
  const fs::path path = directory / name;
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) {
    return std::nullopt;
  }
  const fs::path file = fs::canonical(path, error);
  if (error || !fs::is_regular_file(file, error)) {
    throw InputError(path.string(), error ? "cannot be read: " + error.message()
                                          : std::string("is no regular file"));
  }
  const fs::path folder = fs::canonical(directory.empty() ? "." : directory, error);
  if (!may_be_copied(file, folder)) {
    throw InputError(
        path.string(),
        fmt::format("is a link to {}, outside of the directory, and would be copied from there; "
                    "replace the link by the file",
                    file.string()));
  }
  return CompanionFile{name, plan::read_text_file(file)};
}

std::vector<CompanionFile> read_companions(const fs::path& directory) {
  std::vector<CompanionFile> out;
  for (const char* name : {"config.json", "generation_config.json"}) {
    if (auto file = read_companion(directory, name)) {
      out.push_back(std::move(*file));
    }
  }
  return out;
}

}  // namespace shardlens::checkpoint
