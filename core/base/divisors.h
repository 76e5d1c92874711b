#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace shardlens {

// All divisors of a positive number, sorted.
[[nodiscard]] std::vector<int64_t> divisors(int64_t of);
// For messages: "one of 1, 2, 4", or the only number. `numbers` is not empty.
[[nodiscard]] std::string one_of(std::span<const int64_t> numbers);

}  // namespace shardlens
