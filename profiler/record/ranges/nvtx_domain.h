#pragma once

#include <string_view>

namespace shardlens::record {

// NVTX domain of the ranges that units open.
inline constexpr std::string_view kNvtxDomain = "shardlens";

}  // namespace shardlens::record
