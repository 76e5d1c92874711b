#include "core/checkpoint/companion_files.h"

#include <system_error>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/files/input_file.h"
#include "core/json/json_reader.h"

namespace shardlens::checkpoint {
namespace {

namespace fs = std::filesystem;

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
  if (leads_out_of_directory(path)) {
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
