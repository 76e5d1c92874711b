#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace shardlens::analysis {

// std::partition_point of `list` as an index, searched from index `near` on in steps that double:
// for searches whose results are near each other.
//
// Complexity  O(log distance).
template <class T, class Before>
[[nodiscard]] size_t partition_near(const std::vector<T>& list, size_t near, Before before) {
  size_t low = 0, high = list.size();
  if (near < high && before(list[near])) {
    low = near + 1;
    for (size_t step = 1; low < high; step *= 2) {
      const size_t probe = std::min(low + step, list.size()) - 1;
      if (before(list[probe])) {
        low = probe + 1;
      } else {
        high = probe;
        break;
      }
    }
  } else {
    high = std::min(near, high);
    for (size_t step = 1; low < high; step *= 2) {
      const size_t probe = high - std::min(step, high);
      if (before(list[probe])) {
        low = probe + 1;
        break;
      }
      high = probe;
    }
  }
  const auto at = [&](size_t i) { return list.begin() + static_cast<std::ptrdiff_t>(i); };
  return static_cast<size_t>(std::partition_point(at(low), at(high), before) - list.begin());
}

}  // namespace shardlens::analysis
