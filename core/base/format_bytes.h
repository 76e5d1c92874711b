#pragma once

#include <string>

#include "core/base/units.h"

namespace shardlens {

// "812 B", "4.21 KiB", "1.50 GiB" (GiB = 2^30 B).
[[nodiscard]] std::string format_bytes(Bytes bytes);

}  // namespace shardlens
