#pragma once

#include <string>
#include <string_view>

namespace shardlens::trace {

[[nodiscard]] std::string gzip(std::string_view content);

}  // namespace shardlens::trace
