#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace shardlens::plan {

// How the rows of a layer's tokens are spread over its experts.
struct Routing {
  int64_t chosen = 0;  // experts that have rows
  // Rows of each of these in a product of all experts. With skew: so many that the product has as
  // many tiles of 128 rows as the experts' own numbers of rows have together.
  int64_t rows_of_each = 0;
};

// `rows`: of all experts together. `skew`: the share of the i-th most chosen expert is proportional
// to i^-skew; 0: all have the same number.
[[nodiscard]] Routing route(int64_t rows, int64_t experts, double skew);
// The routing of experts with these rows.
[[nodiscard]] Routing route(std::span<const int64_t> rows_of_experts);

// The rows of each expert, the most chosen one first: each has those up to its end of the
// cumulative shares, so that all rows are given.
[[nodiscard]] std::vector<int64_t> rows_of_experts(int64_t rows, int64_t experts, double skew);

// The same where `ranks` ranks have experts/ranks consecutive experts each, and as many rows of
// their own tokens, which they send to the ranks with their experts.
struct DividedRouting {
  std::vector<int64_t> sent;  // by position of the receiver: rows that each rank sends there
  int64_t own = 0;            // rows that each rank sends altogether
  int64_t received = 0;       // rows of the fullest rank, for which the others wait
  std::vector<int64_t> rows_of_experts;  // of that rank, in products: padded to groups of rows
  int64_t padded = 0;                    // rows of that rank's tensors, with room for the groups
  int64_t returned =
      0;  // rows of what each rank gets back: one for each that it sent, or its tokens
};
// `rows`: of each rank. `ranks` divides `experts`. `pads`: false: products have groups of any
// number of rows.
[[nodiscard]] DividedRouting route_over(
    int64_t rows, int64_t experts, int64_t ranks, double skew, bool pads = true);

// PyTorch's operator that adds the rows of an expert's tokens by atomic additions, which take
// longer than its bytes. Its FLOPs are additions.
inline constexpr std::string_view kAtomicSum = "aten::index_add";

// What each rank sends of its `tokens`, whose rows `routing` has, if a token is sent once to each
// rank that has experts of it, and comes back as a sum. `ranks_per_token`: how many these ranks
// are; nullopt: as many as a random choice of `per_token` of all `experts` gives in the mean.
[[nodiscard]] DividedRouting sent_once(DividedRouting routing,
                                       int64_t tokens,
                                       int64_t experts,
                                       int64_t per_token,
                                       std::optional<int64_t> ranks_per_token);

}  // namespace shardlens::plan
