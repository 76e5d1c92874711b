#include "core/files/output_place.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <string_view>
#include <system_error>
#include <utility>

#include <limits.h>
#include <unistd.h>

namespace shardlens {
namespace {

namespace fs = std::filesystem;

constexpr int kMostLinks = 40;  // the limit of Linux

// Returns N for /dev/fd/N and /proc/self/fd/N (/dev/stdout is a link to the latter). The caller
// duplicates the descriptor: opening a regular file by this name would start at its first byte and
// overwrite what others wrote through the descriptor.
std::optional<int> own_descriptor(const OutputFolder& folder, std::string_view name) {
  struct stat own {};
  if (::stat("/proc/self/fd", &own) != 0 || FileIdentity(own) != folder.identity()) {
    return std::nullopt;
  }
  int number = -1;
  const auto [end, failure] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (failure != std::errc() || end != name.data() + name.size() || number < 0) {
    return std::nullopt;
  }
  return number;
}

std::string read_link(const OutputFolder& folder, const std::string& name) {
  std::array<char, PATH_MAX> target{};
  const ssize_t size =
      ::readlinkat(folder.descriptor(), name.c_str(), target.data(), target.size());
  if (size < 0) {
    throw WriteFault(folder.path() / name, errno);
  }
  return {target.data(), static_cast<size_t>(size)};
}

OutputPlace walk(const fs::path& path) {
  OutputPlace at{OutputFolder(path.parent_path()), path.filename().string(), {}, {}};
  for (int links = 0; links < kMostLinks; ++links) {
    if (at.name.empty() || at.name == "." || at.name == "..") {
      throw WriteFault(path, EISDIR);
    }
    at.descriptor = own_descriptor(at.folder, at.name);
    if (at.descriptor) {
      return at;
    }
    at.found = at.folder.find(at.name);
    if (at.found && S_ISDIR(at.found->st_mode)) {
      throw WriteFault(path, EISDIR);
    }
    if (!at.found || !S_ISLNK(at.found->st_mode)) {
      return at;
    }
    const fs::path target = read_link(at.folder, at.name);
    at.folder = at.folder.follow(target.parent_path());
    at.name = target.filename().string();
  }
  throw WriteFault(path, ELOOP);
}

}  // namespace

OutputPlace find_output_place(const fs::path& path) {
  try {
    return walk(path);
  } catch (const WriteFault& fault) {
    throw WriteFault(path, fault.reason());
  }
}

}  // namespace shardlens
