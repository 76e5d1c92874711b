#pragma once

#include <filesystem>
#include <string_view>

#include "core/files/directory_lock.h"

namespace shardlens::cli {

inline constexpr std::string_view kCaptureLock = "capture.lock";

// The lock of a directory to which captures are written. Messages begin with `flag`.
[[nodiscard]] LockedPlace capture_place(const std::filesystem::path& directory,
                                        std::string_view flag = "--out");

}  // namespace shardlens::cli
