#pragma once

#include <span>
#include <string>
#include <string_view>

namespace shardlens {

// The candidate with the smallest edit distance to `name`, if it is close enough to be a likely
// typing error (distance at most 1 + length/3); otherwise the shortest candidate that contains
// `name`, in whatever case; "" if there is none. For "did you mean …" in messages.
[[nodiscard]] std::string nearest_name(std::string_view name,
                                       std::span<const std::string> candidates);

}  // namespace shardlens
