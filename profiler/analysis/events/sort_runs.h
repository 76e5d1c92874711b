#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace shardlens::analysis {

// Sorts `list`, which consists of a few runs that are already in order, as lists of events usually
// do: threads and streams record in order of time. Equal elements keep their order.
//
// Complexity  O(n log runs); memory of a second list if there are several runs, which is `merged`.
template <class T, class Before>
void sort_runs(std::vector<T>& list, std::vector<T>& merged, Before before) {
  std::vector<size_t> ends;  // of the runs
  for (size_t i = 1; i < list.size(); ++i) {
    if (before(list[i], list[i - 1])) {
      ends.push_back(i);
    }
  }
  if (ends.empty()) {
    return;
  }
  ends.push_back(list.size());
  merged.resize(list.size());
  const auto at = [](std::vector<T>& of, size_t i) {
    return of.begin() + static_cast<std::ptrdiff_t>(i);
  };
  while (ends.size() > 1) {
    std::vector<size_t> left;
    size_t begin = 0;
    for (size_t i = 0; i < ends.size(); i += 2) {
      const size_t middle = ends[i], end = i + 1 < ends.size() ? ends[i + 1] : middle;
      std::merge(at(list, begin), at(list, middle), at(list, middle), at(list, end),
                 at(merged, begin), before);
      left.push_back(end);
      begin = end;
    }
    list.swap(merged);
    ends = std::move(left);
  }
}
template <class T, class Before>
void sort_runs(std::vector<T>& list, Before before) {
  std::vector<T> merged;
  sort_runs(list, merged, before);
}

}  // namespace shardlens::analysis
