#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/base/units.h"
#include "profiler/analysis/figures/rank_collectives.h"

namespace shardlens::analysis {

// A collective of a process group without sequence numbers.
struct Unnumbered {
  int64_t step;    // that issued it; -1: none
  uint32_t index;  // into RankCollectives::rows
  const RankCollective* collective;
  std::optional<std::string_view> unit;  // that called it
};
using UnnumberedList = std::vector<Unnumbered>;  // of one rank, by start

// Whether two parts can be of one collective: by kind and size, and by the unit that called them,
// because ranks call the same collectives for the same units.
[[nodiscard]] bool fit(const RankCollective& a, const RankCollective& b);
[[nodiscard]] bool fit(const Unnumbered& a, const Unnumbered& b);

// Aligns one rank of a group to another, step by step; see [Note: Matching]. The result is, for
// each of the reference's items, the position of the other's item that belongs to it. `expected` is
// the difference of the clocks as far as it is known.
//
// Complexity  O(n log n).
[[nodiscard]] std::vector<std::optional<size_t>> align_rank(const UnnumberedList& reference,
                                                            const UnnumberedList& other,
                                                            Nanoseconds expected);

}  // namespace shardlens::analysis
