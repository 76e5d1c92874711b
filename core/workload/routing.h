#pragma once

#include <cstdint>

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

}  // namespace shardlens::plan
