#include "cli/capture/capture_lock.h"

#include <fmt/format.h>

namespace shardlens::cli {

LockedPlace capture_place(const std::filesystem::path& directory, std::string_view flag) {
  return {directory / kCaptureLock, fmt::format("{} {}", flag, directory.string()),
          "is writing a capture there"};
}

}  // namespace shardlens::cli
