#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace shardlens {

// Medians of values, of which there must be some. Of an even number of values they are the lower
// one in the middle, the upper one, and the mean of both (of integers, rounded towards zero).
//
// Complexity  linear
template <typename T>
[[nodiscard]] T lower_median(std::vector<T> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

template <typename T>
[[nodiscard]] T upper_median(std::vector<T> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

template <typename T>
[[nodiscard]] T median(std::vector<T> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return values.size() % 2 == 1 ? *middle
                                : (*std::max_element(values.begin(), middle) + *middle) / 2;
}

}  // namespace shardlens
