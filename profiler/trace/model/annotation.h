#pragma once

#include <string_view>

namespace shardlens::trace {

// DeviceArgs::module of the root, which an annotation names by an empty text.
inline constexpr std::string_view kRootModule = "(root)";

}  // namespace shardlens::trace
