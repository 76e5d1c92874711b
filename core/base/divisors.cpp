#include "core/base/divisors.h"

#include <fmt/format.h>

namespace shardlens {

std::vector<int64_t> divisors(int64_t of) {
  std::vector<int64_t> out;
  for (int64_t i = 1; i * i <= of; ++i) {
    if (of % i == 0) {
      out.push_back(i);
    }
  }
  for (size_t i = out.size(); i-- > 0;) {  // each divisor up to the root has a partner above it
    if (out[i] * out[i] != of) {
      out.push_back(of / out[i]);
    }
  }
  return out;
}

std::string one_of(std::span<const int64_t> numbers) {
  return numbers.size() == 1 ? fmt::format("{}", numbers.front())
                             : fmt::format("one of {}", fmt::join(numbers, ", "));
}

}  // namespace shardlens
