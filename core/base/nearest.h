#pragma once

#include <span>
#include <string>
#include <string_view>

namespace shardlens {

// The candidate with the smallest edit distance to `name`, or "" if none is close enough to be a
// likely typing error (distance above 1 + length/3). For "did you mean …" in messages.
[[nodiscard]] std::string nearest_name(std::string_view name,
                                       std::span<const std::string> candidates);

}  // namespace shardlens
